"""Who waits for whom, by table."""

import pytest

from stratagem._src.telemetry.monitoring.stragglers import MultiProcessPrograms


def programs_of(**seconds):
    programs = MultiProcessPrograms()
    for name, each in seconds.items():
        programs.add(name, list(enumerate(each)))
    return programs


@pytest.mark.parametrize(
    ("seconds", "waited", "straggler"),
    [
        ({"a": [3.0] * 8, "b": [1.0] * 8}, {"a": 2 / 3, "b": 0.0}, "b"),
        ({"a": [3.0] * 8, "b": [1.0] * 8, "c": [3.0] * 8}, {"a": 2 / 3, "b": 0, "c": 2 / 3}, "b"),
        ({"a": [1.0] * 8, "b": [1.02] * 8}, {"a": 0.0, "b": 0.02 / 1.02}, None),
        # Two that wait for each other, now this one and now that.
        ({"a": [2.0, 1.0] * 8, "b": [1.0, 2.0] * 8}, {"a": 1 / 3, "b": 1 / 3}, None),
        # In turn, so that nobody is the one who is late.
        ({"a": [2, 1, 1] * 3, "b": [1, 2, 1] * 3, "c": [2, 2, 0.9] * 3}, None, None),
        ({"a": [3.0] * 4, "b": [1.0] * 4}, {"a": 2 / 3, "b": 0.0}, None),  # too few to say
        ({"a": [3.0] * 8}, {}, None),
    ],
)
def test_shares_and_straggler(seconds, waited, straggler):
    programs = programs_of(**seconds)
    if waited is not None:
        assert {task: share.waited for task, share in programs.shares().items()} == pytest.approx(
            waited
        )
    assert programs.straggler() == straggler


def test_workers_of_very_many_programs_are_compared_at_any_time():
    programs = MultiProcessPrograms()
    named = []
    for begin in range(0, 50_000, 1000):  # two samples of each second, half a second apart
        programs.add("a", [(number, 3.0) for number in range(begin, begin + 1000)])
        named.append(programs.straggler())
        programs.add(
            "b", [(number, 1.0) for number in range(begin - 500, begin + 500) if number >= 0]
        )
        named.append(programs.straggler())
    assert set(named[4:]) == {"b"}
    assert programs.shares()["a"].waited == pytest.approx(2 / 3)


def test_only_programs_that_all_have_told_of_are_compared():
    programs = MultiProcessPrograms()
    programs.add("a", [(1, 3.0), (2, 100.0)])
    programs.add("b", [(0, 50.0), (1, 1.0)])
    assert programs.shares()["a"].waited == pytest.approx(2 / 3)


def test_workers_that_meet_anew_count_from_the_start():
    programs = programs_of(a=[9.0] * 8, b=[1.0] * 8)
    for task in ("a", "b"):
        programs.add(task, [(number, 1.0) for number in range(5)])
    assert {share.waited for share in programs.shares().values()} == {0.0}


def test_who_is_gone_is_not_compared():
    programs = programs_of(a=[3.0] * 8, b=[1.0] * 8)
    programs.forget("b")
    assert programs.shares() == {}
