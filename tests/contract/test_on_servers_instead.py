"""What parameter servers do where tests of the contract are marked as not on them."""

import jax.numpy as jnp
import numpy as np
import pytest
from replicas import IN_WORKERS
from strategies_under_test import parameter_server_strategy

import stratagem as sg

pytestmark = [
    pytest.mark.about("calls", "variables"),
    pytest.mark.skipif(IN_WORKERS, reason="workers in step have no parameter servers"),
]

Aggregation = sg.VariableAggregation
Dataset = sg.data.Dataset


class Boom(Exception):
    pass


@pytest.fixture
def servers():
    """A strategy whose variables are on servers, with two replicas."""
    return parameter_server_strategy(2)


def make(servers, *args, **kwargs):
    with servers.scope():
        return sg.Variable(*args, **kwargs)


def on_read(servers, aggregation, initial=10.0):
    synchronization = sg.VariableSynchronization.ON_READ
    return make(servers, initial, synchronization=synchronization, aggregation=aggregation)


def replica():
    return sg.distribute.get_replica_context()


def replica_value():
    """1 in the first replica, 2 in the second."""
    return replica().replica_id_in_sync_group + jnp.float32(1)


def still_usable(servers):
    total = servers.run(lambda: replica().all_reduce("SUM", 1.0))
    return [float(part) for part in total.values] == [2, 2]


# --- a server does not take updates back ------------------------------------------------------------


def test_updates_that_were_sent_stay_when_a_replica_fails(servers):
    sent, unsent = (make(servers, 1.0, aggregation=Aggregation.SUM) for _ in range(2))
    local = sg.Variable(1.0)

    def step():
        local.assign_add(1.0)
        sent.assign_add(replica_value())
        if int(replica().replica_id_in_sync_group) == 1:
            raise Boom
        unsent.assign_add(replica_value())

    with pytest.raises(Boom):
        servers.run(step)
    assert float(sent) == 1 + 1 + 2
    assert float(unsent) == 1, "the replicas did not meet there"
    assert float(local) == 1, "what this process holds is taken back"
    assert still_usable(servers)


def test_updates_that_were_sent_stay_when_a_merge_call_fails(servers):
    sent = make(servers, 1.0, aggregation=Aggregation.SUM)

    def fail(strategy):
        raise Boom

    def step():
        sent.assign_add(replica_value())
        replica().merge_call(fail)

    with pytest.raises(Boom):
        servers.run(step)
    assert float(sent) == 4
    assert still_usable(servers)


@pytest.mark.parametrize("eagerly", [True, False])
def test_a_failed_function_has_sent_something_only_if_it_ran_eagerly(servers, eagerly):
    sent, local = make(servers, 1.0, aggregation=Aggregation.SUM), sg.Variable(1.0)

    @sg.function
    def step():
        local.assign_add(1.0)
        servers.run(lambda: sent.assign_add(replica_value()))
        raise Boom

    sg.config.run_functions_eagerly(eagerly)
    try:
        with pytest.raises(Boom):
            step()
    finally:
        sg.config.run_functions_eagerly(False)
    assert float(sent) == (4 if eagerly else 1)
    assert float(local) == 1


# --- an ON_READ variable has one value, on its server -----------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (Aggregation.SUM, 13.0),
        (Aggregation.MEAN, 11.5),
        (Aggregation.ONLY_FIRST_REPLICA, 11.0),
    ],
)
def test_sync_on_read_updates_become_one(servers, execute, aggregation, expected):
    v = on_read(servers, aggregation)
    execute(lambda: servers.run(lambda: v.assign_add(replica_value())))
    assert float(v) == expected
    assert [float(copy) for copy in servers.experimental_local_results(v)] == [expected]
    inside = execute(lambda: servers.run(lambda: v.read_value()))
    assert [float(part) for part in inside.values] == [expected] * 2


def test_sync_on_read_updates_without_aggregation_are_refused(servers, execute):
    v = on_read(servers, Aggregation.NONE)
    with pytest.raises(ValueError, match="needs an aggregation"):
        execute(lambda: servers.run(lambda: v.assign_add(replica_value())))
    assert float(v) == 10


def test_sync_on_read_from_outside(servers, execute):
    v = on_read(servers, Aggregation.SUM)
    execute(lambda: v.assign(4.0))
    assert float(v) == 4
    execute(lambda: v.assign_add(1.0))  # not ambiguous: there is one value to add to
    assert float(v) == 5
    assert float(execute(lambda: servers.reduce("MEAN", v, axis=None))) == 5
    with pytest.raises(ValueError, match="same for all 2 replicas"):
        execute(lambda: servers.reduce("SUM", v, axis=None))


def test_update_of_a_sync_on_read_variable(servers, execute):
    v = on_read(servers, Aggregation.SUM, 0.0)
    per_replica = servers.run(replica_value)
    with pytest.raises(ValueError, match="diverge"):
        servers.extended.update(v, lambda v, x: v.assign_add(x), args=(per_replica,))
    assert float(v) == 0

    def step():
        servers.extended.update(v, lambda v, x: v.assign_add(x), args=(replica_value(),))

    execute(lambda: servers.run(step))
    assert float(v) == 1, "once, with the first replica's value"


# --- variables are not created inside of compiled functions -----------------------------------------


def test_a_function_that_creates_a_variable_is_refused(servers):
    made, calls = [], make(servers, 0.0)

    @sg.function
    def step(x):
        calls.assign_add(1.0)
        if not made:
            made.append(sg.Variable(1.0, name="late"))
        return made[0] + x

    with servers.scope():
        for _ in range(2):
            with pytest.raises(
                RuntimeError, match="'late' cannot be created on a parameter server"
            ):
                step(1.0)
        assert not made
        made.append(sg.Variable(1.0))
        assert float(step(1.0)) == 2
    assert float(calls) == 1, "the refused calls did nothing"


def test_replicas_create_a_variable_eagerly_alone(servers):
    made = []

    def create():
        initial = jnp.ones(2) * replica_value()
        made.append(sg.Variable(initial, aggregation=Aggregation.MEAN))

    with pytest.raises(RuntimeError, match="outside of functions"):
        sg.function(lambda: servers.run(create))()
    assert not made
    servers.run(create)
    assert made[0] is made[1]
    servers.run(lambda: made[0].assign_add(jnp.ones(2)))
    np.testing.assert_array_equal(made[0].numpy(), [2, 2])


# --- datasets begin where and when they are iterated over -------------------------------------------


def test_a_dataset_function_is_called_by_the_first_iteration(servers):
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return Dataset.range(8).batch(context.get_per_replica_batch_size(4))

    distributed = servers.distribute_datasets_from_function(dataset_fn)
    assert not contexts
    steps = [[part.tolist() for part in element.values] for element in distributed]
    assert steps == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert len(list(distributed)) == 2
    (context,) = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    assert context.num_replicas_in_sync == 2


def test_wrong_datasets_are_refused_when_they_are_iterated_over(servers):
    no_dataset = servers.distribute_datasets_from_function(lambda _: 5)
    per_replica = sg.distribute.InputOptions(experimental_replication_mode="PER_REPLICA")
    wrong_way = servers.experimental_distribute_dataset(Dataset.range(2).batch(2), per_replica)
    for _ in range(2):
        with pytest.raises(ValueError, match="iterable of batches"):
            iter(no_dataset)
        with pytest.raises(ValueError, match="distribute_datasets_from_function"):
            iter(wrong_way)


# --- a server's variable is on no device of a replica -----------------------------------------------


def test_a_variable_as_a_destination_stands_for_the_replicas(servers):
    v = make(servers, [1.0, 2.0])
    reduced = servers.extended.reduce_to("SUM", servers.run(lambda: jnp.ones(2)), v)
    assert [part.tolist() for part in reduced.values] == [[2, 2]] * 2
    assert [part.device for part in reduced.values] == list(servers.replica_group.local_devices)
    sent = servers.extended.cross_device_ops.broadcast(jnp.ones(3), v)
    assert sent.tolist() == [1, 1, 1]
    assert v.numpy().tolist() == [1, 2]
