"""How far a loop has come, in one line."""

import io
import itertools

import numpy as np
import pytest

import stratagem as sg


@pytest.fixture
def line():
    return io.StringIO()


def last(line):
    """Returns what is seen in the end."""
    assert line.getvalue().endswith("\n")
    return line.getvalue().rpartition("\r")[2].strip()


def test_all_elements_come_through_and_are_counted(line):
    assert list(sg.train.progress(range(5), file=line)) == list(range(5))
    assert last(line).startswith("5/5  100 %  ")
    assert "steps/s" in last(line)
    assert "examples/s" not in last(line)


def test_what_has_no_length_may_be_given_one(line):
    list(sg.train.progress(iter("abc"), file=line))
    assert last(line).startswith("3  ")
    list(sg.train.progress(iter("abc"), total=6, description="epoch 1", file=line))
    assert last(line).startswith("epoch 1: 3/6  50 %  ")
    assert last(line).endswith(" left")


def test_examples_of_all_replicas_are_counted(line):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    data = sg.data.Dataset.from_tensor_slices(np.ones((10, 3), np.float32)).batch(4)
    distributed = strategy.experimental_distribute_dataset(data)
    assert len(list(sg.train.progress(distributed, file=line))) == 3
    assert last(line).startswith("3/3  100 %  ")
    assert "examples/s" in last(line)


def test_a_loop_that_ends_early_leaves_its_line(line):
    for element in sg.train.progress(range(100), file=line):
        if element == 2:
            break
    assert last(line).startswith("2/100  2 %")


def test_a_shorter_line_covers_a_longer_one(line):
    list(sg.train.progress(range(3), file=line))
    states = line.getvalue().rstrip("\n").split("\r")[1:]
    assert all(len(later) >= len(former.rstrip()) for former, later in itertools.pairwise(states))


def test_a_negative_total_is_refused(line):
    with pytest.raises(sg.errors.InvalidArgumentError, match="got -1"):
        sg.train.progress(range(3), total=-1, file=line)
