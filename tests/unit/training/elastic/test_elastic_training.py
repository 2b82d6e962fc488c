"""The loops of an elastic function where there is nobody to lose."""

import itertools
import shutil

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.training.elastic import elastic_loop
from stratagem._src.training.elastic.elastic_loop import ElasticLoop, first_place


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def rows(batch):
    return np.concatenate([np.asarray(part) for part in batch.values]).tolist()


def test_loops_over_numbers_and_batches(strategy):
    dataset = sg.data.Dataset.range(5).batch(2)

    @sg.train.elastic(strategy)
    def train(loop, factor, *, offset):
        seen = []
        for epoch in loop.range(1, 3):
            for batch in loop.batches(dataset):
                seen.append((epoch, loop.step, [x * factor + offset for x in rows(batch)]))
        return seen

    assert train(10, offset=1) == [
        (1, 0, [1, 11]),
        (1, 1, [21, 31]),
        (1, 2, [41]),
        (2, 3, [1, 11]),
        (2, 4, [21, 31]),
        (2, 5, [41]),
    ]
    assert train.__name__ == "train"


def test_every_epoch_has_an_order_of_its_own_whoever_read_the_dataset_before(strategy):
    dataset = sg.data.Dataset.range(12).shuffle(12, seed=3).batch(12)

    @sg.train.elastic(strategy)
    def orders(loop):
        return [rows(batch) for _ in loop.range(3) for batch in loop.batches(dataset)]

    first = orders()
    assert len({tuple(order) for order in first}) == 3
    list(dataset)
    assert orders() == first


def test_iterables_can_be_given_and_iterators_cannot(strategy):
    batches = [np.arange(4), np.arange(4, 8)]

    @sg.train.elastic(strategy)
    def train(loop, data):
        return [rows(batch) for batch in loop.batches(data)]

    assert train(batches) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="can be read only once"):
        train(iter(batches))
    with pytest.raises(ValueError, match="Pass the original dataset"):
        train(strategy.experimental_distribute_dataset(sg.data.Dataset.range(4).batch(2)))


@pytest.mark.parametrize("policy", ["FILE", "HINT", "OFF"])
def test_datasets_that_each_worker_divides_for_itself_are_refused(strategy, policy):
    options = sg.data.Options()
    wanted = sg.data.experimental.AutoShardPolicy[policy]
    options.experimental_distribute.auto_shard_policy = wanted
    dataset = sg.data.Dataset.range(4).batch(2).with_options(options)

    @sg.train.elastic(strategy)
    def train(loop):
        list(loop.batches(dataset))

    with pytest.raises(ValueError, match="Use DATA or AUTO"):
        train()


def test_loops_side_by_side_are_refused(strategy):
    @sg.train.elastic(strategy)
    def train(loop):
        list(zip(loop.range(3), loop.range(3), strict=False))

    with pytest.raises(RuntimeError, match=r"without zip\(\)"):
        train()


def test_an_error_of_the_function_is_its_own_and_leaves_no_thread(strategy):
    @sg.train.elastic(strategy)
    def train(loop):
        for _ in loop.batches(sg.data.Dataset.range(100).batch(2)):
            raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        train()


def test_something_else_than_a_strategy_is_refused():
    with pytest.raises(ValueError, match="needs the strategy that trains"):
        sg.train.elastic(lambda loop: None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((8,), [5, 6, 7]),
        ((3, 8), [5, 6, 7]),
        ((6, 8), [5, 6, 7]),  # begins where a variable says how many are done
        ((1, 10, 2), [5, 7, 9]),
        ((9, 3, -1), [5, 4]),
        ((5,), []),
    ],
)
def test_a_range_goes_on_at_its_number_wherever_it_would_begin(strategy, arguments, expected):
    place = {**first_place(1), "loops": [[0, 5]]}
    loop = ElasticLoop(strategy, place, lambda _: None, lambda: None)
    assert list(loop.range(*arguments)) == expected


def test_a_range_notes_the_number_that_it_begins_with(strategy):
    places = []
    loop = ElasticLoop(
        strategy, first_place(1), lambda place: places.append(place["loops"]), lambda: None
    )
    for _ in loop.range(3, 5):
        for _ in loop.range(2):
            pass
    assert places[:3] == [[[0, 3], [0, 1]], [[0, 3], [0, 2]], [[0, 4]]]


# --- checkpoints ------------------------------------------------------------------------------------


class Killed(Exception):
    pass


DATA = sg.data.Dataset.range(24).shuffle(24).batch(4)


class Job:
    """A job that is started again and again, with a checkpoint after each batch or each epoch.

    Attributes:
        seen: The rows of each step that is in a checkpoint, or in the last run.
    """

    def __init__(self, directory, devices, *, every_batch):
        self.strategy = sg.distribute.MirroredStrategy([f"CPU:{k}" for k in range(devices)])
        with self.strategy.scope():
            self.total = sg.Variable(0, aggregation=sg.VariableAggregation.SUM)
            self.steps = sg.Variable(0, aggregation=sg.VariableAggregation.ONLY_FIRST_REPLICA)
            self.of_epoch = sg.Variable(0, aggregation=sg.VariableAggregation.ONLY_FIRST_REPLICA)
        self.directory = directory
        self.every_batch = every_batch
        self.run = sg.train.elastic(self.strategy)(self.train)

    def train(self, loop, kill_after):
        """Trains, and returns the place, the rows and the variables after each step."""
        variables = {"total": self.total, "steps": self.steps, "of_epoch": self.of_epoch}
        checkpoint = sg.train.Checkpoint(**variables, loop=loop)
        manager = sg.train.CheckpointManager(checkpoint, self.directory, max_to_keep=1)
        manager.restore_or_initialize()
        manager.save()  # on the way to where it goes on
        seen = []

        def step(batch):
            self.strategy.run(lambda x: self.total.assign_add(x.sum()), args=(batch,))
            self.steps.assign_add(1)
            self.of_epoch.assign_add(1)
            parts = self.strategy.experimental_local_results(batch)
            rows = np.concatenate([np.asarray(part) for part in parts])
            counts = int(self.total), int(self.steps), int(self.of_epoch)
            seen.append((loop.step, rows.tolist(), *counts))

        def note_and_maybe_die():
            manager.save()
            manager.sync()
            if len(seen) >= kill_after:
                raise Killed(seen)

        for batch in loop.batches(DATA):
            step(batch)
            if loop.step == 1:
                break
        for _ in loop.range(3):
            self.of_epoch.assign(0)  # which is taken back on the way to where it goes on
            for batch in loop.batches(DATA):
                step(batch)
                if self.every_batch:
                    note_and_maybe_die()
            if not self.every_batch:
                note_and_maybe_die()
        for _ in loop.range(2):
            self.of_epoch.assign(0)
            for batch in loop.batches(DATA):
                step(batch)
            for _ in loop.range(2):
                note_and_maybe_die()
        return seen


@pytest.mark.parametrize("every_batch", [True, False])
def test_a_job_that_is_killed_again_and_again_reads_everything_once(tmp_path, every_batch):
    seen, devices = [], [1, 2, 4]
    for attempt in range(100):
        job = Job(tmp_path, devices[attempt % 3], every_batch=every_batch)
        try:
            seen += job.run(4)
            break
        except Killed as killed:
            seen += killed.args[0]
    assert attempt >= 5
    assert [step for step, *_ in seen] == list(range(2 + 6 * 3 + 6 * 2))
    assert [steps for *_, steps, _ in seen] == list(range(1, 2 + 6 * 3 + 6 * 2 + 1))
    assert [of_epoch for *_, of_epoch in seen] == [1, 2, *([*range(1, 7)] * 5)]
    assert seen[-1][2] == sum(sum(rows) for _, rows, *_ in seen)
    epochs = [
        [row for _, rows, *_ in seen[k : k + 6] for row in rows] for k in range(2, len(seen), 6)
    ]
    for epoch in epochs:
        assert sorted(epoch) == list(range(24))
    assert len({tuple(epoch) for epoch in epochs[:3]}) == 3


def test_a_job_in_pieces_is_equal_to_one_in_one_piece(tmp_path):
    first = Job(tmp_path / "whole", 2, every_batch=True)
    with pytest.raises(Killed):
        first.run(1)
    shutil.copytree(tmp_path / "whole", tmp_path / "pieces")
    seen = []
    while True:
        job = Job(tmp_path / "pieces", 2, every_batch=True)
        try:
            seen += job.run(5)
            break
        except Killed as killed:
            seen += killed.args[0]
    assert seen == Job(tmp_path / "whole", 2, every_batch=True).run(1000)


def test_a_loop_in_a_body_that_a_checkpoint_counts_as_done_is_refused(strategy, tmp_path):
    @sg.train.elastic(strategy)
    def train(loop):
        checkpoint = sg.train.Checkpoint(loop=loop)
        for _ in loop.range(2):
            checkpoint.save(tmp_path / "ckpt")
            for _ in loop.range(2):
                pass

    with pytest.raises(RuntimeError, match="Save after the last loop of the body"):
        train()


def test_a_place_is_restored_before_the_first_loop_or_not_at_all(strategy, tmp_path):
    @sg.train.elastic(strategy)
    def train(loop, directory):
        checkpoint = sg.train.Checkpoint(loop=loop)
        for _ in loop.range(2):
            path = checkpoint.save(directory / "ckpt")
            checkpoint.restore(path)

    with pytest.raises(RuntimeError, match="before the first loop starts"):
        train(tmp_path)
    iterator = iter(sg.data.Dataset.range(3))
    path = sg.train.Checkpoint(loop=iterator).save(tmp_path / "iterator")

    @sg.train.elastic(strategy)
    def restore(loop):
        sg.train.Checkpoint(loop=loop).restore(path)

    with pytest.raises(ValueError, match="restored from the saved state of a loop"):
        restore()


def test_after_a_loss_the_run_goes_on_from_its_boundary_and_not_from_a_checkpoint(
    strategy, tmp_path
):
    def count(loop):
        checkpoint = sg.train.Checkpoint(loop=loop)
        path = sg.train.latest_checkpoint(tmp_path)
        checkpoint.restore(path)
        for number in loop.range(10):
            yield number
            checkpoint.save(tmp_path / "ckpt")
            checkpoint.sync()

    reached, arrived = [], []

    def loop_at(place):
        return ElasticLoop(strategy, place, reached.append, lambda: arrived.append(True))

    assert list(itertools.islice(count(loop_at(first_place(1))), 3)) == [0, 1, 2]
    assert [place["loops"] for place in reached] == [[[0, 1]], [[0, 2]]]
    # It was lost at its boundary before 5: later than the checkpoint.
    numbers = count(loop_at({**first_place(1), "loops": [[0, 5]]}))
    assert (next(numbers), arrived) == (5, [True])
    # A new job goes on from the checkpoint, whose values make a boundary of their own.
    reached.clear()
    assert list(count(loop_at(first_place(2)))) == list(range(2, 10))
    assert reached[0] == {"step": 0, "loops": [[0, 2]], "seed": 1, "iterations": {}}
    assert arrived == [True, True]
    assert list(count(loop_at(first_place(2)))) == []


def test_a_checkpoint_without_the_loop_warns_once(strategy, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(elastic_loop, "_warned_of", [])
    with strategy.scope():
        total = sg.Variable(0)

    @sg.train.elastic(strategy)
    def train(loop, **objects):
        checkpoint = sg.train.Checkpoint(total=total, **objects)
        for _ in loop.range(2):
            checkpoint.save(tmp_path / "saved")
        checkpoint.sync()
        return loop

    train(nested=[{"x": sg.Variable(1)}])
    assert caplog.text.count("does not contain the loop") == 1
    elastic_loop._warned_of.clear()
    caplog.clear()

    @sg.train.elastic(strategy)
    def train_with_loop(loop):
        checkpoint = sg.train.Checkpoint(total=total, loop=loop)
        for _ in loop.range(2):
            checkpoint.save(tmp_path / "whole")
        checkpoint.sync()

    train_with_loop()
    outside = sg.train.Checkpoint(total=total)
    outside.write(tmp_path / "outside")
    outside.sync()
    assert "does not contain the loop" not in caplog.text
