"""Updates that are sent together take place together, or not at all."""

import threading

import cloudpickle
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.parameter_server.client.function_update import _FunctionOnVariable
from stratagem._src.parameter_server.parameter_messages import UpdateRequest
from stratagem._src.parameter_server.server.server_function import DENSE_FUNCTION, ROW_FUNCTION
from stratagem._src.parameter_server.server.server_optimizer import OptimizerFunction

ONES = np.ones((4, 2), np.float32)


def add_one(variable):
    variable.assign_add(ONES)


def fail(variable):
    variable.assign_add(ONES)
    raise ArithmeticError("not today")


def needs_more(gradient, state, value=None):
    raise ArithmeticError("not with this gradient")


def function(fn):
    return cloudpickle.dumps(_FunctionOnVariable(fn, ((), {})))


ADAM = cloudpickle.dumps(OptimizerFunction("adam", optax.adam(0.1)))
BROKEN = cloudpickle.dumps(
    OptimizerFunction("broken", optax.GradientTransformation(lambda value: (), needs_more))
)
INVALID = {
    "shape": ("assign_add", (np.ones(3, np.float32),), b""),
    "name": ("assign_mul", (ONES,), b""),
    "operands": ("assign", (ONES, ONES), b""),
    "no vector of rows": ("scatter_add", (ONES, np.array([[0, 1, 2, 3]])), b""),
    "rows that are no numbers": ("scatter_add", (ONES, np.arange(4.0)), b""),
    "elements": ("assign", (np.full((4, 2), "x"),), b""),
    "gradient": (DENSE_FUNCTION, (np.ones(3, np.float32),), ADAM),
    "gradient of rows": (ROW_FUNCTION, (ONES, np.array([1])), ADAM),
    "a step that cannot be traced": (DENSE_FUNCTION, (ONES,), BROKEN),
    "a function that raises": (DENSE_FUNCTION, (), function(fail)),
}


@pytest.mark.parametrize("what", INVALID)
def test_the_third_of_five_is_invalid(servers, what):
    variables = [servers.variable(np.zeros((4, 2))) for _ in range(5)]
    valid = [
        ("assign_add", (ONES,), b""),
        (DENSE_FUNCTION, (ONES,), ADAM),
        INVALID[what],
        ("scatter_update", (ONES[:1], np.array([2])), b""),
        (DENSE_FUNCTION, (), function(add_one)),
    ]
    requests = [
        UpdateRequest(v.shards[0].id, 0, *update)
        for v, update in zip(variables, valid, strict=True)
    ]
    with pytest.raises((sg.errors.StratagemError, ArithmeticError)):
        servers.client.push(requests)
    assert not any(v.numpy().any() for v in variables)
    # The step that did not take place left no state either.
    servers.client.push([r for k, r in enumerate(requests) if k != 2])
    expected = [1, -0.1, 0, None, 1]
    for variable, value in zip(variables, expected, strict=True):
        if value is not None:
            np.testing.assert_allclose(variable.numpy(), np.full((4, 2), value), rtol=1e-5)
    assert variables[3].numpy()[2].tolist() == [1, 1]


def test_what_a_bool_cannot_do_is_refused_before(servers):
    number, flag = servers.variable(np.zeros(2)), servers.variable(np.array([True, False]))
    with pytest.raises(sg.errors.VariableError, match="assign_sub of 'Variable', which is bool"):
        servers.client.push(
            [
                UpdateRequest(number.shards[0].id, 0, "assign", (np.ones(2, np.float32),)),
                UpdateRequest(flag.shards[0].id, 0, "assign_sub", (np.array([True, True]),)),
            ]
        )
    assert not number.numpy().any()


def test_several_updates_of_one_array_with_a_function_that_raises_last(servers):
    variable = servers.variable(np.zeros((4, 2)))
    shard = variable.shards[0].id

    def push(last):
        updates = [
            ("assign_add", (ONES,), b""),
            (DENSE_FUNCTION, (ONES,), ADAM),
            (ROW_FUNCTION, (ONES[:1], np.array([0])), ADAM),
            (DENSE_FUNCTION, (), function(last)),
        ]
        servers.client.push([UpdateRequest(shard, 0, *update) for update in updates])

    push(add_one)
    once = variable.numpy()
    with pytest.raises(ArithmeticError, match="not today"):
        push(fail)
    np.testing.assert_array_equal(variable.numpy(), once)
    state = servers.services[0].store.find(shard).optimizer_states["adam"]
    assert int(state.leaves[0]) == 2
    push(add_one)
    assert not np.array_equal(variable.numpy(), once)
    assert int(servers.services[0].store.find(shard).optimizer_states["adam"].leaves[0]) == 4


def test_a_racing_reader_never_sees_half_an_array(servers):
    """Of one array all updates of a group with a function appear at once."""
    variable = servers.variable(np.zeros((4, 2)))
    shard = variable.shards[0].id
    seen, done = [], threading.Event()

    def read():
        client = servers.new_client()
        mine = [request._replace() for request in variable.read_requests()]
        while not done.is_set():
            seen.append(client.pull(mine)[0].copy())
        client.close()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(50):
            updates = [
                ("assign_add", (ONES,), b""),
                (DENSE_FUNCTION, (), function(add_one)),
                ("scatter_add", (ONES, np.arange(4)), b""),
            ]
            servers.client.push([UpdateRequest(shard, 0, *update) for update in updates])
    finally:
        done.set()
        reader.join()
    assert variable.numpy()[0, 0] == 150
    assert len(seen) > 10
    for value in seen:
        assert len(np.unique(value)) == 1
        assert value[0, 0] % 3 == 0


def test_groups_in_opposite_orders_do_not_wait_for_each_other(servers):
    a, b = servers.variable(np.zeros((4, 2))), servers.variable(np.zeros((4, 2)))

    def push(variables):
        client = servers.new_client()
        for _ in range(50):
            client.push(
                [
                    UpdateRequest(v.shards[0].id, 0, DENSE_FUNCTION, (), function(add_one))
                    for v in variables
                ]
            )
        client.close()

    threads = [threading.Thread(target=push, args=(order,)) for order in ([a, b], [b, a])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [a.numpy()[0, 0], b.numpy()[0, 0]] == [100, 100]
