"""Checkpoints of workers that train in step: one name, one writer, and one outcome for all."""

import shutil
from pathlib import Path

import numpy as np
import optax
import pytest
from task_functions import task

import stratagem as sg
from stratagem._src.checkpoint import collective_commit
from stratagem.testing import run_cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]

ON_READ = sg.VariableSynchronization.ON_READ
SUM, MEAN = sg.VariableAggregation.SUM, sg.VariableAggregation.MEAN


class Training:
    """What every worker has."""

    def __init__(self):
        options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=30)
        self.strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        with self.strategy.scope():
            self.w = sg.Variable([1.0, 2.0])
            self.seen = sg.Variable(0.0, synchronization=ON_READ, aggregation=SUM)
            self.average = sg.Variable([0.0], synchronization=ON_READ, aggregation=MEAN)
        self.optimizer = sg.train.Optimizer(optax.adam(0.1))
        # Not in the scope: each worker has its own, and moves it by an optimizer of its own.
        self.own = sg.Variable(10.0 * task()[1])
        self.of_own = sg.train.Optimizer(optax.sgd(1.0, momentum=1.0))
        self.held = {
            "w": self.w, "seen": self.seen, "average": self.average, "optimizer": self.optimizer,
            "own": {"v": self.own}, "of_own": self.of_own,
        }  # fmt: skip
        self.checkpoint = sg.train.Checkpoint(**self.held)

    def step(self):
        def in_replica():
            number = sg.distribute.get_replica_context().replica_id_in_sync_group + 1.0
            self.seen.assign_add(number)
            self.average.assign([number])
            self.optimizer.apply_gradients([(self.w * 2.0, self.w)])

        self.strategy.run(in_replica)
        self.of_own.apply_gradients([(1.0 + task()[1], self.own)])

    def everything(self):
        optimizers = (*self.optimizer.variables, *self.of_own.variables)
        variables = (self.w, self.seen, self.average, self.own, *optimizers)
        results = self.strategy.experimental_local_results
        return [np.asarray(part).tolist() for v in variables for part in results(v)]

    def values(self):
        return [v.numpy().tolist() for v in (self.w, self.seen, self.average, self.own)]

    def refused(self, path, held=None):
        """Restores, and returns the error and whether anything has changed."""
        before = self.everything()
        try:
            sg.train.Checkpoint(**(held or self.held)).restore(path)
        except sg.errors.StratagemError as error:
            return type(error).__name__, str(error), self.everything() == before
        return None


def save_and_restore(directory):
    worker = task()[1]
    training = Training()
    found = {"first": training.checkpoint.save(f"{directory}/ckpt")}
    for _ in range(2):
        training.step()
    found["paths"] = [training.checkpoint.save(f"{directory}/ckpt") for _ in range(2)]
    # As if writing took so long that the others had to hear of it after every piece.
    collective_commit._HEARTBEAT_INTERVAL_SECONDS = 0.0
    found["paths"].append(training.checkpoint.save(f"{directory}/ckpt"))
    saved = training.values()
    found["own_path"] = training.checkpoint.save(f"{directory}/of_worker_{worker}/ckpt")
    training.step()
    after = training.everything()
    path = found["paths"][-1]

    with training.strategy.scope():
        large = sg.Variable(np.arange(6_000_000, dtype=np.float32).reshape(6, 1_000_000))
    found["large"] = sg.train.Checkpoint(large=large).save(f"{directory}/large")

    # One worker alone cannot restore: nobody does.
    damaged = f"{directory}/damaged-1"
    if worker == 1:
        shutil.copytree(path, damaged)
        Path(damaged, "_METADATA").write_bytes(b"garbage")
    found["damaged"] = training.refused(damaged if worker == 1 else path)
    found["absent"] = training.refused(f"{directory}/none-1" if worker == 1 else path)
    others = {**training.held, "w": sg.Variable([1.0, 2.0, 3.0])} if worker == 1 else None
    found["shape"] = training.refused(path, others)
    found["different"] = training.refused(path if worker == 1 else found["first"])

    training.checkpoint.restore(path)
    found["restored"] = saved == training.values()
    training.step()
    again = training.everything()
    found["again"] = np.allclose(again[0], after[0], rtol=1e-6) and again[3:] == after[3:]
    found["own"] = float(training.own)
    training.checkpoint.restore(found["first"])
    found["reset"] = [int(training.optimizer.variables[0]), training.w.numpy().tolist()]

    # The leader cannot write: everybody hears of it.
    Path(f"{directory}/file").write_text("")
    try:
        training.checkpoint.save(f"{directory}/file/ckpt")
        found["unwritable"] = None
    except (OSError, sg.errors.StratagemError) as error:
        found["unwritable"] = str(error)
    try:
        sg.train.Checkpoint(**{"w" if worker == 0 else "v": training.w}).save(f"{directory}/ckpt")
    except ValueError as error:
        found["unequal"] = str(error)

    # A worker that has come later has not created everything yet: the others save it.
    extended, extra = training.strategy.extended, {"extra": np.arange(3.0)}
    extended.expect([np.zeros(1)] if worker == 1 else [])
    later = sg.train.Checkpoint(w=training.w, **({} if worker == 1 else extra))
    found["behind"] = later.save(f"{directory}/behind")
    extended.expect([])
    later.sync()

    # When the others are gone, a survivor can still save what it has.
    if worker == 0:
        with pytest.raises(sg.errors.UnavailableError):
            training.step()
        found["survivor"] = sg.train.Checkpoint(w=training.w).save(f"{directory}/ckpt")
    return found


def test_workers_save_and_restore_as_one(tmp_path):
    results = run_cluster(save_and_restore, 2, (str(tmp_path),), timeout=100)
    for worker, found in enumerate(results):
        assert found["first"] == f"{tmp_path}/ckpt-1"
        assert found["paths"] == [f"{tmp_path}/ckpt-{k}" for k in (2, 3, 4)]
        assert found["own_path"] == f"{tmp_path}/of_worker_{worker}/ckpt-5"
        assert found["own"] == 10 * worker - (1 + 2 + 3) * (1 + worker)
        assert (found["restored"], found["again"]) == (True, True)
        assert found["reset"] == [0, [1.0, 2.0]]
        for why, error in (
            ("damaged", "DataLossError"), ("absent", "NotFoundError"), ("shape", "InvalidArgumentError"),
            ("different", "InvalidArgumentError"),
        ):  # fmt: skip
            kind, text, unchanged = found[why]
            assert (kind, unchanged) == (error, True), (why, found[why])
            told = worker == 1 or why == "different"
            assert told or "worker 1" in text
        assert "file" in found["unwritable"]
        assert "All workers must save the same objects" in found["unequal"]
    # What each worker saved under its own prefix is whole.
    for path in (f"{tmp_path}/ckpt-4", *(found["own_path"] for found in results)):
        w, seen = sg.Variable([0.0, 0.0]), sg.Variable(0.0)
        sg.train.Checkpoint(w=w, seen=seen).restore(path)
        assert float(seen) == 2 * (1 + 2)
    w = sg.Variable([0.0, 0.0])
    sg.train.Checkpoint(w=w).restore(results[0]["survivor"])
    assert w.numpy().tolist() == [1, 2]
    for found in results:
        behind = sg.train.Checkpoint(w=w, extra=np.zeros(3))
        behind.restore(found["behind"]).assert_consumed()
        assert behind.extra.tolist() == [0, 1, 2]
    # Each has written its part of what is large.
    for worker, found in enumerate(results):
        files = Path(found["large"], f"ocdbt.process_{worker}").rglob("*")
        assert sum(file.stat().st_size for file in files) >= 8_000_000
    checkpoint = sg.train.Checkpoint(large=np.zeros((6, 1_000_000), np.float32))
    checkpoint.restore(results[0]["large"]).assert_consumed()
    assert (checkpoint.large.reshape(-1) == np.arange(6_000_000, dtype=np.float32)).all()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *(f"ckpt-{k}" for k in range(1, 6)), "behind-1", "damaged-1", "file", "large-1", "of_worker_0",
        "of_worker_1",
    }  # fmt: skip


def save_as_tensorflow_programs_do(directory):
    """Saves between steps: each worker for itself; then the leader alone, and all of them."""
    worker, training = task()[1], Training()
    extended = training.strategy.extended
    checkpoint = sg.train.Checkpoint(w=training.w, optimizer=training.optimizer, epoch=worker)
    prefix = f"{directory}/chief" if worker == 0 else f"{directory}/worker_{worker}"
    manager = sg.train.CheckpointManager(checkpoint, prefix, max_to_keep=1)
    best = sg.train.CheckpointManager(checkpoint, f"{directory}/best", max_to_keep=1)
    found = {"own": [], "all": [], "best": []}
    for _ in range(3):
        training.step()
        found["own"].append(manager.save())
        if worker != 0:
            shutil.rmtree(prefix)
        training.step()
        if extended.should_checkpoint:
            found["best"].append(best.save(checkpoint_number=1))
        found["all"].append(checkpoint.save(f"{directory}/all"))
    found["w"] = training.w.numpy().tolist()

    # Nobody has all of the sum.
    together = sg.train.Checkpoint(w=training.w, seen=training.seen)
    try:
        if extended.should_checkpoint:
            together.save(f"{directory}/together")
        training.step()
    except sg.errors.StratagemError as error:
        found["together"] = str(error)
    return found


def test_saves_of_the_leader_alone_and_of_each_worker(tmp_path):
    results = run_cluster(save_as_tensorflow_programs_do, 2, (str(tmp_path),), timeout=100)
    leader, other = results
    assert leader["all"] == other["all"]
    assert [Path(path).parent.name for path in other["own"]] == ["worker_1"] * 3
    assert not (tmp_path / "worker_1").exists()
    (chief,) = (path for path in (tmp_path / "chief").iterdir() if path.name[0] != ".")
    assert str(chief) == leader["own"][-1]
    assert (leader["best"], other["best"]) == ([f"{tmp_path}/best/ckpt-1"] * 3, [])
    for path in (leader["best"][-1], leader["all"][-1]):
        w = sg.Variable([0.0, 0.0])
        restored = sg.train.Checkpoint(w=w, epoch=7)
        restored.restore(path)
        assert (w.numpy().tolist(), restored.epoch) == (leader["w"], 0)
    for found in results:
        assert "every worker must call save(), even if should_checkpoint" in found["together"]
        assert "'seen' is sharded over the workers" in found["together"]


def save_after_steps(directory):
    training = Training()
    training.step()
    path = training.checkpoint.save(f"{directory}/ckpt")
    training.checkpoint.sync()
    return path, training.values()


def restore_elsewhere(path):
    training = Training()
    training.checkpoint.restore(path).assert_consumed()
    iterations = int(training.optimizer.iterations)
    training.step()
    return training.values(), iterations


def weights_after(*workers_of_steps):
    """Returns what ``Training.w`` is after steps of so many workers each."""
    adam, w = optax.adam(0.1), np.array([1.0, 2.0], np.float32)
    state = adam.init(w)
    for number in workers_of_steps:
        updates, state = adam.update(2.0 * number * w, state, w)
        w = np.asarray(optax.apply_updates(w, updates))
    return w


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3])
def test_into_another_number_of_workers(tmp_path, number):
    saved = run_cluster(save_after_steps, 2, (str(tmp_path),), timeout=100)
    path, (w, seen, _, _) = saved[0]
    results = run_cluster(restore_elsewhere, number, (path,), timeout=100)
    np.testing.assert_allclose(w, weights_after(2), rtol=1e-5)
    for worker, (values, iterations) in enumerate(results):
        assert values[1] == seen + sum(range(1, number + 1))
        np.testing.assert_allclose(values[0], weights_after(2, number), rtol=1e-5)
        assert iterations == 1
        # A worker that was not there goes on with what the first had.
        own = saved[worker if worker < 2 else 0][1][3]
        before = worker if worker < 2 else 0
        assert values[3] == own - (1 + before) - (1 + worker)


# --- input, and other numbers of workers ------------------------------------------------------------


class Reading:
    """A distributed iterator in each worker, with nothing else that they have in common."""

    def __init__(self, directory, policy):
        options = sg.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        # One file for each of two workers.
        dataset = sg.data.TFRecordDataset(sorted(map(str, Path(directory).glob("*.records"))))
        dataset = dataset.shuffle(10, seed=4).batch(4).with_options(options)
        self.strategy = sg.distribute.MultiWorkerMirroredStrategy(
            communication_options=sg.distribute.experimental.CommunicationOptions(
                timeout_seconds=30
            )
        )
        self.iterator = iter(self.strategy.experimental_distribute_dataset(dataset))
        self.checkpoint = sg.train.Checkpoint(iterator=self.iterator, count=task()[1])

    def read(self, number):
        results = self.strategy.experimental_local_results
        steps = [next(self.iterator) for _ in range(number)]
        return [[bytes(x) for part in results(step) for x in part] for step in steps]


def read_and_save(directory, policy, path):
    policy = sg.data.experimental.AutoShardPolicy[policy]
    reading = Reading(directory, policy)
    reading.read(2)
    path = reading.checkpoint.save(path)
    after = reading.read(3)
    again = Reading(directory, policy)
    again.read(1)
    again.checkpoint.restore(path).assert_consumed()
    return path, again.read(3) == after, after, again.checkpoint.count


def go_on(directory, policy, path):
    reading = Reading(directory, sg.data.experimental.AutoShardPolicy[policy])
    try:
        reading.checkpoint.restore(path)
    except ValueError as error:
        return str(error)
    return reading.read(3)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["DATA", "FILE"])
def test_the_place_of_the_input_on_every_worker(tmp_path, policy):
    for number in range(2):
        with sg.io.TFRecordWriter(str(tmp_path / f"{number}.records")) as writer:
            for k in range(40):
                writer.write(f"{number}/{k}".encode())
    arguments = (str(tmp_path), policy, f"{tmp_path}/ckpt")
    results = run_cluster(read_and_save, 2, arguments, timeout=100)
    for worker, (path, is_same, _, count) in enumerate(results):
        assert path == f"{tmp_path}/ckpt-1"
        assert (is_same, count) == (True, worker)
    (alone,) = run_cluster(go_on, 1, (str(tmp_path), policy, path), timeout=100)
    if policy == "FILE":
        assert "was saved by 2 workers" in alone
    else:
        # The same batches, which were divided between two then.
        divided = [a + b for a, b in zip(*(after for _, _, after, _ in results), strict=True)]
        assert alone == divided


@pytest.mark.slow
def test_a_worker_that_is_lost_during_a_save_is_named(workers, tmp_path):
    three = workers(3, tmp_path, script=Path(__file__).with_name("lost_while_saving.py"))
    for survivor in range(2):
        _, told = three.outcome(survivor)
        assert three.name(2) in told["error"]
        assert told["first"] == f"{tmp_path}/ckpt-1"
    assert sg.train.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-1"
    assert {path.name for path in tmp_path.iterdir()} == {"ckpt-1"}
