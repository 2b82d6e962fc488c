"""Single and sharded variables on real servers."""

import gc
import pickle
import threading

import cloudpickle
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.parameter_server.client import remote_variable
from stratagem._src.parameter_server.client.function_update import call_on_variable_server
from stratagem._src.parameter_server.client.initial_value import RowInitializer
from stratagem._src.variables.updates import ASSIGN_ADD

TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)


@pytest.fixture(params=["single", "sharded"])
def table(request, servers):
    make = servers.variable if request.param == "single" else servers.sharded
    return make(TABLE, name="table")


class CountingClient:
    """Counts the messages of a variable's client."""

    def __init__(self, client, monkeypatch):
        self.messages = []
        call = client._call

        def counted(server, method, message, *args, **kwargs):
            self.messages.append((server, method, sum(a.nbytes for a in message.arrays)))
            answer = call(server, method, message, *args, **kwargs)
            self.received = sum(a.nbytes for a in answer.arrays)
            return answer

        monkeypatch.setattr(client, "_call", counted)


def test_reads_and_updates(table):
    np.testing.assert_array_equal(table.numpy(), TABLE)
    np.testing.assert_array_equal(jnp.sum(table, axis=0), TABLE.sum(0))
    assert table.assign_add(np.ones_like(TABLE)) is table
    table.assign_sub(3 * np.ones_like(TABLE))
    np.testing.assert_array_equal(table + 2, TABLE)
    table.assign(2 * TABLE)
    np.testing.assert_array_equal(np.asarray(table), 2 * TABLE)


@pytest.mark.parametrize(
    "key",
    [3, -1, slice(2, 9, 3), slice(None, None, -2), slice(7, 1, -2), slice(4, 4), [9, 0, 5], (4, 1)],
    ids=str,
)
def test_indexing(table, key):
    np.testing.assert_array_equal(table[key], TABLE[key])


def test_rows_of_any_shape(table):
    rows = np.array([[9, 0, 9], [4, 3, 7]])
    np.testing.assert_array_equal(table.sparse_read(rows), TABLE[rows])
    assert table.sparse_read(np.zeros(0, int)).shape == (0, 2)
    with pytest.raises(sg.errors.VariableError, match=r"\[0, 10\), got 0 to 10"):
        table.sparse_read([0, 10])


@pytest.mark.parametrize("update", ["add", "sub", "mul", "div", "min", "max", "update"])
def test_row_updates(table, update):
    slices = sg.IndexedSlices(np.array([[2.0, 3], [4, 5]]), np.array([9, 2]))
    local = sg.Variable(TABLE)
    getattr(local, f"scatter_{update}")(slices)
    getattr(table, f"scatter_{update}")(slices)
    np.testing.assert_allclose(table.numpy(), local.numpy())


def test_rows_are_all_that_moves(servers, monkeypatch):
    table = servers.sharded(np.zeros((1000, 4)), num_shards=2)
    counting = CountingClient(servers.client, monkeypatch)
    table.sparse_read([1, 2, 3])
    assert counting.messages == [(0, "ps/pull", 3 * 8)]
    assert counting.received == 3 * 4 * 4
    counting.messages.clear()
    table.scatter_add(sg.IndexedSlices(np.ones((2, 4), np.float32), [999, 0]))
    assert {server for server, _, _ in counting.messages} == {0, 1}
    assert max(nbytes for *_, nbytes in counting.messages) <= 4 * 4 + 8


def test_many_variables_need_one_message_per_server(servers, monkeypatch):
    variables = [servers.variable(float(k), server=k % 2) for k in range(6)]
    counting = CountingClient(servers.client, monkeypatch)
    values = servers.client.pull([r for v in variables for r in v.read_requests(None)])
    assert [float(value) for value in values] == [0, 1, 2, 3, 4, 5]
    one = (np.ones((), np.float32),)
    servers.client.push([u for v in variables for u in v.update_requests(ASSIGN_ADD, one)])
    assert sorted(counting.messages) == [
        (server, method, nbytes)
        for server in (0, 1)
        for method, nbytes in (("ps/pull", 0), ("ps/push", 12))
    ]
    assert [float(v) for v in variables] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "bool", "float16", "uint8"])
def test_element_types_travel(servers, dtype):
    variable = servers.variable(np.array([[1, 0], [0, 1]]), dtype=dtype)
    assert variable.dtype == dtype
    assert variable.numpy().dtype == dtype
    assert variable.sparse_read([1]).dtype == dtype
    variable.assign(np.ones((2, 2), dtype))
    assert variable.numpy().all()


def test_updates_of_several_threads_are_all_counted(servers):
    variable = servers.sharded(np.zeros((4, 3)), num_shards=2)

    def work():
        for _ in range(25):
            variable.assign_add(np.ones((4, 3)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (variable.numpy() == 100).all()


def test_what_it_is(servers):
    single = servers.variable([1.0], server=1, name="w")
    assert single.name == "w:0"
    assert single.device == "/job:ps/replica:0/task:1/device:CPU:0"
    assert "task:1" in repr(single)
    sharded = servers.sharded(TABLE, name="t")
    assert [part.name for part in sharded.variables] == ["t/part_0:0", "t/part_1:0", "t/part_2:0"]
    assert [tuple(part.shape) for part in sharded.variables] == [(4, 2), (3, 2), (3, 2)]
    assert isinstance(sharded, sg.Variable)
    assert len(sharded) == 10


def test_a_shard_is_a_variable_of_its_own(servers):
    sharded = servers.sharded(TABLE)
    first = sharded.variables[0]
    assert sharded.variables[0] is first
    first.assign(np.zeros((4, 2)))
    assert not sharded.numpy()[:4].any()
    np.testing.assert_array_equal(sharded.numpy()[4:], TABLE[4:])


def test_a_handle_travels_and_arrives_as_one_object(servers, monkeypatch):
    variable = servers.sharded(np.zeros((100_000, 8)))
    pickled = cloudpickle.dumps([variable, variable])
    assert len(pickled) < 1500
    again = pickle.loads(pickled)
    assert again[0] is variable
    assert again[1] is variable
    # As in another process, which has none yet.
    monkeypatch.setattr(remote_variable, "_known", {})
    monkeypatch.setattr(remote_variable, "client_for", lambda _: servers.new_client())
    there = pickle.loads(pickled)[0]
    assert there is not variable
    assert pickle.loads(pickled)[0] is there
    there.scatter_add(sg.IndexedSlices(np.ones((1, 8)), [99_999]))
    assert float(variable[99_999].sum()) == 8
    there.storage.close()


def test_memory_is_freed_with_the_variable(servers):
    keep = servers.variable(1.0)
    for _ in range(3):
        temporary = servers.sharded(np.zeros((1000, 10)))
        del temporary
    gc.collect()
    keep.assign_add(1.0)
    assert sum(service.store.num_bytes for service in servers.services) == 4


def test_large_values_are_sent_in_blocks(servers, monkeypatch):
    monkeypatch.setattr("stratagem._src.parameter_server.client.initial_value._BLOCK_BYTES", 64)
    table = servers.sharded(TABLE)
    np.testing.assert_array_equal(table.numpy(), TABLE)
    scalar_like = servers.variable(np.arange(100.0))
    np.testing.assert_array_equal(scalar_like.numpy(), np.arange(100.0))


def test_rows_computed_by_the_servers(servers, monkeypatch):
    monkeypatch.setattr("stratagem._src.parameter_server.client.initial_value._BLOCK_BYTES", 64)
    counting = CountingClient(servers.client, monkeypatch)
    rows = RowInitializer(lambda rows: jnp.stack([rows, rows * 2], 1), shape=(50, 2))
    table = servers.sharded(rows, num_shards=3)
    assert sum(nbytes for *_, nbytes in counting.messages) == 0
    numbers = np.arange(50)
    np.testing.assert_array_equal(table.numpy(), np.stack([numbers, numbers * 2], 1))
    wrong = RowInitializer(lambda rows: rows, shape=(50, 2))
    with pytest.raises(sg.errors.ShapeMismatchError, match="must return"):
        servers.variable(wrong)


def test_a_function_is_called_where_the_variable_lives(table):
    thread = threading.get_ident()

    def clip(variable, low, scale=1.0):
        variable.assign(jnp.maximum(variable, low) * scale)
        return threading.get_ident() != thread, variable, variable.shape[0]

    low = np.full_like(TABLE, 5)
    result = call_on_variable_server(table, clip, (low,), {"scale": 2.0})
    np.testing.assert_array_equal(table.numpy(), np.maximum(TABLE, 5) * 2)
    results = result if isinstance(result, list) else [result]
    assert sum(rows for *_, rows in results) == 10
    for elsewhere, variable, _ in results:
        assert elsewhere
        assert variable is table


def test_an_error_in_such_a_function_changes_nothing(table):
    def fail(variable):
        variable.assign_add(jnp.ones_like(variable))
        raise KeyError("no such key")

    with pytest.raises(KeyError, match="no such key"):
        call_on_variable_server(table, fail)
    np.testing.assert_array_equal(table.numpy(), TABLE)


def test_many_functions_are_not_kept(servers):
    variable = servers.variable(0.0)
    for k in range(300):
        call_on_variable_server(variable, lambda v, k: v.assign_add(jnp.float32(k)), (k,))
    assert float(variable) == sum(range(300))
    assert len(servers.services[0].store._functions) <= 256


def test_updates_sent_together_fail_apart(servers):
    variable = servers.variable(np.zeros(2))
    good = variable.update_requests(ASSIGN_ADD, (np.ones(2, np.float32),))
    bad = variable.update_requests(ASSIGN_ADD, (np.ones(3, np.float32),))
    errors = servers.client._push_groups(0, [good, bad, good])
    assert [type(error) for error in errors] == [
        type(None),
        sg.errors.ShapeMismatchError,
        type(None),
    ]
    assert variable.numpy().tolist() == [2, 2]


def test_what_is_changed_later_was_not_sent_and_what_is_read_is_the_readers(table):
    buffer = np.zeros_like(TABLE)
    for number in range(3):
        buffer[:] = number
        table.assign(buffer)
        buffer[:] = -1
        rows = np.ones((1, 2), np.float32)
        table.scatter_add(sg.IndexedSlices(rows, np.array([4])))
        rows[:] = -1
        read = table.numpy()
        assert (read[0, 0], read[4, 0]) == (number, number + 1)
        read[:] = -1
        assert table.numpy()[0, 0] == number
