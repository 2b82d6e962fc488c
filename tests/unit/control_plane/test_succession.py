"""Who goes on after a loss: events in, a verdict out."""

import itertools

import pytest

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.control_plane.generation import Generation, Member
from stratagem._src.control_plane.quorum import GiveUp, Go, Newcomers, Succession, Wait

SILENT, TIMEOUT = 8.0, 60.0


def member(index, life=""):
    return Member("worker", index, f"host:{index}", f"process {index}{life}")


def begun(number, min_workers=1):
    members = tuple(map(member, range(number)))
    return Succession(Generation(3, "x", members, "m:1"), min_workers, SILENT, TIMEOUT, now=0.0)


def ready(succession, *indices, now=0.0):
    for index in indices:
        succession.ready(f"process {index}", now=now)


def ended(succession, *indices):
    for index in indices:
        succession.ended(f"process {index}")


def tasks(verdict):
    assert isinstance(verdict, Go), verdict
    return [one.index for one in verdict.members]


def test_all_that_are_left_go_on_when_each_is_accounted_for():
    succession = begun(3)
    ready(succession, 0)
    ended(succession, 1)
    assert succession.verdict(0.0) == Wait("worker 2 (host:2)")
    ready(succession, 2)
    assert tasks(succession.verdict(0.0)) == [0, 2]


def test_a_member_that_answers_but_is_not_ready_is_waited_for_until_the_deadline():
    succession = begun(3)
    for now in range(int(TIMEOUT)):
        ready(succession, 0, 1, now=now)
        succession.answered("process 2", now=now)
        assert succession.verdict(now) == Wait("worker 2 (host:2)")
    ready(succession, 0, 1, now=TIMEOUT + 1)
    assert tasks(succession.verdict(TIMEOUT + 1)) == [0, 1]


def test_a_member_that_was_silent_before_is_not_waited_for_again():
    succession = begun(3)
    succession.suspect("process 0")
    ready(succession, 1, now=0.1)
    assert succession.leader(0.1) == member(1)
    assert succession.verdict(0.1) == Wait("worker 2 (host:2)")
    ready(succession, 1, 2, now=0.2)
    assert tasks(succession.verdict(0.2)) == [1, 2]


def test_a_suspect_that_answers_is_waited_for():
    succession = begun(3)
    succession.suspect("process 0")
    succession.answered("process 0", now=1.0)
    ready(succession, 1, 2, now=2.5)
    assert succession.verdict(2.5) == Wait("worker 0 (host:0)")
    succession.suspect("process 0")  # what is known since counts
    assert succession.leader(2.5) == member(0)


def test_suspects_do_not_let_two_parts_go_on():
    for part in (0, 1), (2,), (1, 2), (0,):
        succession = begun(3)
        for other in set(range(3)) - set(part):
            succession.suspect(f"process {other}")
        ready(succession, *part, now=0.1)
        assert isinstance(succession.verdict(0.1), Go) == (len(part) == 2)


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_two_parts_that_do_not_hear_of_each_other_never_both_go_on(number):
    for size in range(1, number):
        for part in itertools.combinations(range(number), size):
            verdicts = []
            for members in (part, set(range(number)) - set(part)):
                succession = begun(number)
                ready(succession, *members, now=SILENT + 1)
                verdicts.append(succession.verdict(SILENT + 1))
            assert sum(isinstance(verdict, Go) for verdict in verdicts) == 1, part


def test_one_that_is_left_goes_on_alone_if_the_others_have_ended_for_sure():
    succession = begun(5)
    ready(succession, 4)
    ended(succession, 0, 1, 2, 3)
    assert tasks(succession.verdict(0.0)) == [4]


def test_one_that_hears_of_nobody_gives_up_after_a_while():
    succession = begun(3)
    ready(succession, 2, now=SILENT + 1)
    verdict = succession.verdict(SILENT + 1)
    assert isinstance(verdict, Wait)
    assert "worker 0 (host:0), worker 1 (host:1), which may go on without" in verdict.text
    ready(succession, 2, now=TIMEOUT + 1)
    assert isinstance(succession.verdict(TIMEOUT + 1), GiveUp)


def test_too_few_wait_for_newcomers_and_say_in_whose_place():
    succession = begun(3, min_workers=3)
    ended(succession, 1)
    ready(succession, 0, 2)
    assert succession.verdict(0.0) == Wait(
        "1 more of at least 3 workers, in place of worker 1 (host:1)"
    )
    assert tasks(succession.verdict(0.0, (member(1, "b"),))) == [0, 1, 2]
    ready(succession, 0, 2, now=TIMEOUT + 1)
    assert isinstance(succession.verdict(TIMEOUT + 1), GiveUp)


def test_newcomers_do_not_make_a_part_of_the_members_the_larger_one():
    succession = begun(3)
    ready(succession, 2, now=SILENT + 1)
    newcomers = (member(0, "b"), member(1, "b"))
    assert isinstance(succession.verdict(SILENT + 1, newcomers), Wait)


def test_a_task_is_given_to_one_process():
    succession = begun(2)
    ready(succession, 0, 1)
    newcomers = (member(1, "b"), member(2, "b"), member(2, "c"))
    verdict = succession.verdict(0.0, newcomers)
    assert [one.incarnation for one in verdict.members] == ["process 0", "process 1", "process 2c"]


def test_the_chief_comes_first():
    chief = Member("chief", 0, "host:9", "chief")
    succession = begun(2)
    ready(succession, 0, 1)
    assert [str(one.task) for one in succession.verdict(0.0, (chief,)).members] == [
        "chief 0",
        "worker 0",
        "worker 1",
    ]


def test_a_member_that_says_no_more_that_it_can_go_on_is_not_counted_on():
    succession = begun(2)
    ready(succession, 0, 1)
    ready(succession, 0, now=5.0)
    assert succession.verdict(5.0) == Wait("worker 1 (host:1)")


def test_the_first_that_is_neither_gone_nor_silent_leads():
    succession = begun(3)
    assert succession.leader(0.0) == member(0)
    ended(succession, 0)
    assert succession.leader(0.0) == member(1)
    succession.answered("process 2", now=SILENT)
    assert succession.leader(SILENT + 1) == member(2)


def test_newcomers_that_stop_asking_are_forgotten():
    newcomers = Newcomers()
    newcomers.knock(member(1), now=0.0)
    newcomers.knock(member(2), now=2.0)
    assert newcomers.waiting(4.0) == (member(2),)
    newcomers.admit((member(2),))
    assert newcomers.waiting(4.0) == ()


def test_a_generation_travels_as_plain_data():
    generation = begun(2).generation
    assert Generation.from_json(generation.to_json()) == generation
    assert generation.rank_of("process 1") == 1
    assert generation.rank_of("somebody") is None
    for wrong in (None, {}, {"number": "1"}, generation.to_json() | {"members": [3]}):
        with pytest.raises(RendezvousError, match="same version"):
            Generation.from_json(wrong)
