"""Two strategies that are alike are two in messages."""

import inspect
import re

import pytest

import stratagem as sg
from stratagem._src.core.errors import ContextError


def make():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def line_of(function):
    return inspect.getsourcelines(function)[1] + 1


@pytest.fixture
def pair():
    return make(), make()


def names_in(error):
    return re.findall(r"<MirroredStrategy (\d+) \(([^)]*)\) on", str(error.value))


def test_each_has_a_number_and_the_place_where_it_was_made(pair):
    first, second = map(repr, pair)
    assert first != second
    place = f"({__file__.rpartition('/')[2]}:{line_of(make)})"
    assert place in first
    assert place in second
    assert repr(pair[0]) == first


def test_a_message_about_two_tells_them_apart(pair):
    first, second = pair
    with first.scope():
        v = sg.Variable(1.0)
    with pytest.raises(ContextError) as used:
        second.run(lambda: v.read_value())
    with second.scope(), pytest.raises(ContextError) as updated:
        v.assign(2.0)
    with first.scope(), pytest.raises(ContextError) as called:
        second.run(lambda: 1)
    with first.scope(), pytest.raises(ContextError) as entered, second.scope():
        pass
    for error in (used, updated, called, entered):
        (one, place), (other, same_place) = names_in(error)
        assert one != other
        assert place == same_place


def test_where_it_was_made_is_in_the_users_code():
    made = [
        sg.distribute.OneDeviceStrategy("CPU:0"),
        sg.distribute.experimental.CentralStorageStrategy(["CPU:0"]),
        sg.distribute.experimental.MultiWorkerMirroredStrategy(),
    ]
    for strategy in made:
        assert re.match(
            rf"<{type(strategy).__name__} \d+ \(test_telling_\w+\.py:\d+\) ", repr(strategy)
        )
