"""Checkpoints of variables and optimizer state on parameter servers."""

import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import PyTreeCheckpointer

import stratagem as sg
from stratagem._src.parameter_server.client.remote_arrays import VariableArray
from stratagem._src.parameter_server.server import checkpoint_service
from stratagem._src.parameter_server.server.checkpoint_service import memory_budget

TABLE = np.arange(40, dtype=np.float32).reshape(20, 2)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several chunks in a shard, and some on the borders of two."""
    monkeypatch.setattr("stratagem._src.parameter_server.client.initial_value._BLOCK_BYTES", 24)
    monkeypatch.setattr("stratagem._src.checkpoint.format.chunks._CHUNK_BYTES", 24)


def test_into_another_number_of_shards_and_servers(servers, three_servers, tmp_path):
    saved = {
        "table": servers.sharded(TABLE, num_shards=3),
        "bias": servers.variable(np.arange(7.0), server=1),
        "steps": servers.variable(5),
        "none": servers.variable(np.zeros((0, 3))),
        "half": servers.variable(np.arange(5), dtype=jnp.bfloat16),
    }
    checkpoint = sg.train.Checkpoint(model=saved)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    np.testing.assert_array_equal(PyTreeCheckpointer().restore(path)["model"]["table"], TABLE)
    other = three_servers
    restored = {
        "table": other.sharded(np.zeros((20, 2)), num_shards=4),
        "bias": other.sharded(np.zeros(7), num_shards=2),
        "steps": other.variable(0, server=2),
        "none": other.variable(np.zeros((0, 3))),
        "half": other.variable(np.zeros(5), dtype=jnp.bfloat16),
    }
    mirrored = {name: sg.Variable(np.zeros_like(v.numpy())) for name, v in saved.items()}
    for variables in (restored, mirrored):
        sg.train.Checkpoint(model=variables).restore(path)
        for name, variable in saved.items():
            np.testing.assert_array_equal(variables[name].numpy(), variable.numpy())


def test_from_a_checkpoint_of_tensorflow(servers):
    """Its table is in three slices, which are not those of the shards; a transfer has 3 rows."""
    path = Path(__file__).parents[1] / "checkpoint/of_tensorflow/files/partitioned/model.ckpt"
    table = servers.sharded(np.zeros((7, 2)), num_shards=2)
    bias = servers.variable(np.zeros(2), server=1)
    sg.train.Checkpoint(net={"embedding": table}, bias=bias).restore(path).assert_consumed()
    np.testing.assert_array_equal(table.numpy(), np.arange(14).reshape(7, 2) / 8)
    np.testing.assert_array_equal(bias.numpy(), [0, 0.125])


def test_a_restored_optimizer_goes_on_as_before(servers, tmp_path):
    """Steps, save, restore into other shards, steps: the same as all steps at once."""
    dense, rows = (
        np.ones((20, 2), np.float32),
        sg.IndexedSlices(np.ones((2, 2), np.float32), [3, 19]),
    )
    transformation = optax.adam(0.1)

    def steps(optimizer, table, weights, count):
        for _ in range(count):
            optimizer.apply_gradients([(rows, table), (dense, weights)])

    def make(num_shards):
        table = servers.sharded(TABLE, num_shards=num_shards)
        weights = servers.sharded(TABLE, num_shards=num_shards)
        optimizer = sg.train.Optimizer(transformation)
        checkpoint = sg.train.Checkpoint(table=table, weights=weights, optimizer=optimizer)
        return optimizer, table, weights, checkpoint

    optimizer, table, weights, checkpoint = make(2)
    steps(optimizer, table, weights, 2)
    path = checkpoint.save(tmp_path / "ckpt")
    steps(optimizer, table, weights, 2)

    optimizer_2, table_2, weights_2, checkpoint_2 = make(1)
    checkpoint_2.restore(path)
    steps(optimizer_2, table_2, weights_2, 2)
    np.testing.assert_allclose(weights_2.numpy(), weights.numpy(), rtol=1e-6)
    np.testing.assert_allclose(table_2.numpy(), table.numpy(), rtol=1e-6)


def test_what_does_not_fit_changes_nothing(servers, tmp_path):
    a, b = servers.variable(np.ones(3)), servers.variable(np.ones(2))
    path = sg.train.Checkpoint(a=a, b=b).save(tmp_path / "ckpt")
    a.assign(np.zeros(3))
    with pytest.raises(sg.errors.NotFoundError, match=r"has no \['c'\]; it has"):
        sg.train.Checkpoint(a=a, c=b).restore(path)
    with pytest.raises(
        sg.errors.InvalidArgumentError, match=r"is float32\[3\], but .* float32\[2\]"
    ):
        sg.train.Checkpoint(a=a, b=a).restore(path)
    with pytest.raises(sg.errors.NotFoundError, match="no optimizers"):
        sg.train.Checkpoint(a=a, o=sg.train.Optimizer(optax.sgd(1.0))).restore(path)
    assert not a.numpy().any()


def test_a_failed_save_leaves_nothing(servers, tmp_path):
    a = servers.variable(np.ones(3))
    servers.endpoints[0].shutdown()
    with pytest.raises(sg.errors.PSUnavailableError):
        sg.train.Checkpoint(a=a).save(tmp_path / "ckpt")
    assert list(tmp_path.iterdir()) == []
    assert sg.train.latest_checkpoint(tmp_path) is None


def test_numbers_and_the_latest(servers, tmp_path):
    v = sg.Variable(0.0)
    checkpoint = sg.train.Checkpoint(v=v)
    paths = [checkpoint.save(tmp_path / "ckpt") for _ in range(11)]
    assert paths[-1] == str(tmp_path / "ckpt-11")
    assert sg.train.latest_checkpoint(tmp_path) == paths[-1]


# --- refusals change nothing, on any server ---------------------------------------------------------


class Training:
    """A table in shards, weights on one server, and an optimizer that moves them."""

    def __init__(self, servers, transformation, steps=0):
        self.table = servers.sharded(TABLE, num_shards=3)
        self.weights = servers.variable(np.ones(4), server=1)
        self.count = servers.variable(0, server=0)
        self.optimizer = sg.train.Optimizer(transformation)
        self.objects = {
            "table": self.table, "weights": self.weights, "count": self.count,
            "optimizer": self.optimizer,
        }  # fmt: skip
        self.checkpoint = sg.train.Checkpoint(**self.objects)
        self.steps(steps)

    def steps(self, number):
        rows = sg.IndexedSlices(np.ones((3, 2), np.float32), [3, 10, 19])
        for _ in range(number):
            self.optimizer.apply_gradients([(rows, self.table), (np.ones(4), self.weights)])
            self.count.assign_add(1)

    def everything(self, servers):
        """Returns all that the servers hold for it."""
        found = []
        for shard in (*self.table.shards, *self.weights.shards, *self.count.shards):
            stored = servers.services[shard.server].store.find(shard.id)
            state = stored.optimizer_states.get(self.optimizer._on_servers.identity)
            leaves = [] if state is None else state.leaves
            found.append([np.array(x).tolist() for x in (stored.read(), *leaves)])
        return found


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("saved", "into"),
    [
        (optax.adam(0.1), optax.sgd(0.1, momentum=0.9)),
        (optax.rmsprop(0.1), optax.sgd(0.1, momentum=0.9)),
        (optax.adam(0.1), optax.adabelief(0.1)),
    ],
    ids=["adam to momentum", "rmsprop to momentum", "adam to adabelief"],
)
def test_the_state_of_another_optimizer_is_refused(servers, tmp_path, saved, into, steps):
    path = Training(servers, saved, steps=3).checkpoint.save(tmp_path / "ckpt")
    other = Training(servers, into, steps=steps)
    before = other.everything(servers)
    with pytest.raises(sg.errors.InvalidArgumentError, match="the state of another optimizer"):
        other.checkpoint.restore(path)
    assert other.everything(servers) == before


def test_a_damaged_file_changes_nothing_on_any_server(servers, tmp_path):
    training = Training(servers, optax.adam(0.1), steps=2)
    path = training.checkpoint.save(tmp_path / "ckpt")
    saved = training.everything(servers)
    training.steps(1)
    training.checkpoint.sync()
    before = training.everything(servers)
    files = [file for file in (tmp_path / "ckpt-1").rglob("*") if file.is_file()]
    noticed = 0
    for file in files:
        data = file.read_bytes()
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        for damaged in (data[:middle], flipped, b""):
            file.write_bytes(damaged)
            error = None
            try:
                training.checkpoint.restore(path)
            except sg.errors.DataLossError as found:
                error = str(found)
            if error is None:  # some bytes say nothing
                assert training.everything(servers) == saved
                training.steps(1)
            else:
                assert str(file) in error
                assert training.everything(servers) == before
                noticed += 1
        file.write_bytes(data)
    assert noticed >= 9
    training.checkpoint.restore(path)
    assert int(training.count) == 2


def test_a_server_that_has_lost_a_variable_leaves_the_others_as_they_are(servers, tmp_path):
    training = Training(servers, optax.adam(0.1), steps=2)
    path = training.checkpoint.save(tmp_path / "ckpt")
    training.steps(1)
    (shard,) = training.weights.shards
    servers.services[1].store.delete([shard.id])
    held = {name: training.objects[name] for name in ("table", "count")}
    before = [v.numpy().tolist() for v in held.values()]
    for objects in (training.objects, {**held, "weights": training.weights}):
        with pytest.raises(sg.errors.PSUnavailableError, match="does not hold the variable"):
            sg.train.Checkpoint(**objects).restore(path)
    assert [v.numpy().tolist() for v in held.values()] == before


def test_a_checkpoint_from_before_the_first_step_resets_the_state(servers, tmp_path):
    training = Training(servers, optax.adam(0.1))
    path = training.checkpoint.save(tmp_path / "ckpt")
    training.steps(3)
    after = training.everything(servers)
    training.checkpoint.restore(path)
    assert int(training.count) == 0
    assert all(len(values) == 1 for values in training.everything(servers))
    training.steps(3)
    assert training.everything(servers) == after


def test_state_survives_a_save_before_the_first_step(servers, three_servers, tmp_path):
    first = Training(servers, optax.adam(0.1), steps=3)
    path = first.checkpoint.save(tmp_path / "ckpt")
    second = Training(three_servers, optax.adam(0.1))
    second.checkpoint.restore(path)
    path = second.checkpoint.save(tmp_path / "ckpt")
    third = Training(servers, optax.adam(0.1))
    third.checkpoint.restore(path)
    for training in (first, third):
        training.steps(2)
    assert third.everything(servers) == first.everything(servers)


@pytest.mark.parametrize(
    ("transformation", "counted"), [(optax.adam(0.1), 3), (optax.sgd(0.1, momentum=0.9), 1)]
)
def test_state_moves_between_servers_and_mirrored_variables(
    servers, tmp_path, transformation, counted
):
    """Two steps there, one here, one there again: the same as all of them there."""

    def make_there():
        variables = {
            "weights": servers.sharded(np.ones((5, 2)), num_shards=3), "bias": servers.variable(np.ones(4)),
        }  # fmt: skip
        return Moved(variables, transformation)

    there, back = make_there(), make_there()
    with sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        mirrored = {"weights": sg.Variable(np.zeros((5, 2))), "bias": sg.Variable(np.zeros(4))}
    here = Moved(mirrored, transformation)
    there.steps(2)
    back.steps(1)
    here.checkpoint.restore(there.checkpoint.save(tmp_path / "ckpt")).assert_consumed()
    here.steps(1)
    assert int(here.optimizer.iterations) == counted  # momentum on servers counts no steps
    back.checkpoint.restore(here.checkpoint.save(tmp_path / "ckpt")).assert_consumed()
    back.steps(1)
    there.steps(2)
    for name, variable in there.variables.items():
        np.testing.assert_allclose(back.variables[name].numpy(), variable.numpy(), rtol=1e-5)


class Moved:
    """Variables anywhere, and an optimizer that moves them."""

    def __init__(self, variables, transformation):
        self.variables = variables
        self.optimizer = sg.train.Optimizer(transformation)
        self.checkpoint = sg.train.Checkpoint(model=variables, optimizer=self.optimizer)

    def steps(self, number):
        for _ in range(number):
            pairs = [(2.0 * v.numpy(), v) for v in self.variables.values()]
            self.optimizer.apply_gradients(pairs)


# --- what the servers do themselves -----------------------------------------------------------------


def test_the_servers_write_and_read_their_own_rows(servers, three_servers, tmp_path, monkeypatch):
    """Only chunks that lie on two servers come through this process."""
    moved = []

    def watch(name):
        method = getattr(VariableArray, name)

        def watched(self, begin, *rest):
            moved.append((name, begin))
            return method(self, begin, *rest)

        monkeypatch.setattr(VariableArray, name, watched)

    watch("read_rows")
    watch("write_rows")
    table, bias = servers.sharded(TABLE, num_shards=3), servers.variable(np.arange(3.0), server=1)
    checkpoint = sg.train.Checkpoint(table=table, bias=bias)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    # Chunks of 3 rows, in shards of 7, 7 and 6.
    assert moved == [("read_rows", 6), ("read_rows", 12)]
    parts = sorted(p.name for p in (tmp_path / "ckpt-1").glob("ocdbt.process_*"))
    assert [name[:18] for name in parts] == [
        "ocdbt.process_0",
        *(f"ocdbt.process_ps_{k}" for k in "01"),
    ]
    moved.clear()
    into = (
        three_servers.sharded(np.zeros((20, 2)), num_shards=4),
        three_servers.variable(np.zeros(3)),
    )
    sg.train.Checkpoint(table=into[0], bias=into[1]).restore(path).assert_consumed()
    np.testing.assert_array_equal(into[0].numpy(), TABLE)
    np.testing.assert_array_equal(into[1].numpy(), np.arange(3))
    assert moved == []


@pytest.mark.parametrize("room", [0, 50, 1 << 20])
def test_steps_after_a_save_are_not_in_it(servers, tmp_path, monkeypatch, room):
    """Whether there is memory to keep what is to be saved, or some, or none."""
    monkeypatch.setattr(checkpoint_service, "memory_budget", lambda: room)
    write, may_write = checkpoint_service._write_all, threading.Event()

    def write_late(directory, held):
        assert may_write.wait(100)
        assert bool(held) == bool(room)
        write(directory, held)

    monkeypatch.setattr(checkpoint_service, "_write_all", write_late)
    training = Training(servers, optax.adam(0.1), steps=2)
    saved = training.everything(servers)
    path = training.checkpoint.save(tmp_path / "ckpt")
    training.steps(3)
    may_write.set()
    assert training.everything(servers) != saved
    training.checkpoint.restore(path)
    assert training.everything(servers) == saved
    assert all(not service._checkpoints._held for service in servers.services)


def test_a_server_that_is_lost_while_it_writes_is_named(servers, tmp_path, monkeypatch):
    table = servers.sharded(TABLE, num_shards=3)
    checkpoint = sg.train.Checkpoint(table=table)
    first = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    write = checkpoint_service._write_all

    def end(directory, held):
        if "ps_1" in directory.name:
            servers.endpoints[1].shutdown()
        else:
            write(directory, held)

    monkeypatch.setattr(checkpoint_service, "_write_all", end)
    checkpoint.save(tmp_path / "ckpt")
    with pytest.raises(sg.errors.PSUnavailableError, match="ps/task:1"):
        checkpoint.sync()
    assert sg.train.latest_checkpoint(tmp_path) == first
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-1"]


def test_servers_must_see_the_directory(servers, tmp_path, monkeypatch):
    """As they do not on other machines, if the path leads to a disk there."""
    table = servers.sharded(TABLE, num_shards=3)
    checkpoint = sg.train.Checkpoint(table=table)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    table.assign(TABLE + 1)
    monkeypatch.setattr(
        checkpoint_service, "checkpoint_path", lambda path: Path("/elsewhere") / path[1:]
    )
    with pytest.raises(
        sg.errors.NotFoundError, match=r"/elsewhere.*ckpt-2.* does not exist on this one"
    ):
        checkpoint.save(tmp_path / "ckpt")
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-1"]
    with pytest.raises(
        sg.errors.NotFoundError, match=r"/elsewhere.*ckpt-1.* does not exist on this one"
    ):
        checkpoint.restore(path)
    np.testing.assert_array_equal(table.numpy(), TABLE + 1)


@pytest.mark.parametrize(
    ("group", "limits", "wanted"),
    [
        ("/", {}, 250 << 20),
        ("/", {"": ("max", 0)}, 250 << 20),
        ("/job/step", {"job/step": ("max", 0), "job": (800 << 20, 400 << 20)}, 100 << 20),
        ("/job", {"job": (300 << 20, 300 << 20), "other": (1, 1)}, 64 << 20),
    ],
)
def test_what_a_save_may_hold_in_memory(tmp_path, group, limits, wanted):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemFree: 12 kB\nMemAvailable:  {1000 << 10} kB\n")
    (proc / "self/cgroup").write_text(f"0::{group}\n")
    for name, (limit, current) in limits.items():
        (groups / name).mkdir(parents=True, exist_ok=True)
        (groups / name / "memory.max").write_text(f"{limit}\n")
        (groups / name / "memory.current").write_text(f"{current}\n")
    assert memory_budget(proc, groups) == wanted
