"""Who goes on after a loss: events in, a decision out."""

import itertools

import pytest

from stratagem._src.cluster.errors import RendezvousError
from stratagem._src.control_plane.generation import Generation, Member
from stratagem._src.control_plane.quorum import GiveUp, JoinRequests, Pending, Quorum, Resume

SILENT, TIMEOUT = 8.0, 60.0


def member(index, life=""):
    return Member("worker", index, f"host:{index}", f"process {index}{life}")


def begun(number, min_workers=1):
    members = tuple(map(member, range(number)))
    return Quorum(Generation(3, "x", members, "m:1"), min_workers, SILENT, TIMEOUT, now=0.0)


def ready(quorum, *indices, now=0.0):
    for index in indices:
        quorum.ready(f"process {index}", now=now)


def ended(quorum, *indices):
    for index in indices:
        quorum.ended(f"process {index}")


def tasks(decision):
    assert isinstance(decision, Resume), decision
    return [one.index for one in decision.members]


def test_all_that_are_left_go_on_when_each_is_accounted_for():
    quorum = begun(3)
    ready(quorum, 0)
    ended(quorum, 1)
    assert quorum.decide(0.0) == Pending("worker 2 (host:2)")
    ready(quorum, 2)
    assert tasks(quorum.decide(0.0)) == [0, 2]


def test_a_member_that_answers_but_is_not_ready_is_waited_for_until_the_deadline():
    quorum = begun(3)
    for now in range(int(TIMEOUT)):
        ready(quorum, 0, 1, now=now)
        quorum.answered("process 2", now=now)
        assert quorum.decide(now) == Pending("worker 2 (host:2)")
    ready(quorum, 0, 1, now=TIMEOUT + 1)
    assert tasks(quorum.decide(TIMEOUT + 1)) == [0, 1]


def test_a_member_that_was_silent_before_is_not_waited_for_again():
    quorum = begun(3)
    quorum.suspect("process 0")
    ready(quorum, 1, now=0.1)
    assert quorum.leader(0.1) == member(1)
    assert quorum.decide(0.1) == Pending("worker 2 (host:2)")
    ready(quorum, 1, 2, now=0.2)
    assert tasks(quorum.decide(0.2)) == [1, 2]


def test_a_suspect_that_answers_is_waited_for():
    quorum = begun(3)
    quorum.suspect("process 0")
    quorum.answered("process 0", now=1.0)
    ready(quorum, 1, 2, now=2.5)
    assert quorum.decide(2.5) == Pending("worker 0 (host:0)")
    quorum.suspect("process 0")  # what is known since counts
    assert quorum.leader(2.5) == member(0)


def test_suspects_do_not_let_two_parts_go_on():
    for part in (0, 1), (2,), (1, 2), (0,):
        quorum = begun(3)
        for other in set(range(3)) - set(part):
            quorum.suspect(f"process {other}")
        ready(quorum, *part, now=0.1)
        assert isinstance(quorum.decide(0.1), Resume) == (len(part) == 2)


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_two_parts_that_do_not_hear_of_each_other_never_both_go_on(number):
    for size in range(1, number):
        for part in itertools.combinations(range(number), size):
            decisions = []
            for members in (part, set(range(number)) - set(part)):
                quorum = begun(number)
                ready(quorum, *members, now=SILENT + 1)
                decisions.append(quorum.decide(SILENT + 1))
            assert sum(isinstance(decision, Resume) for decision in decisions) == 1, part


def test_one_that_is_left_goes_on_alone_if_the_others_have_ended_for_sure():
    quorum = begun(5)
    ready(quorum, 4)
    ended(quorum, 0, 1, 2, 3)
    assert tasks(quorum.decide(0.0)) == [4]


def test_one_that_hears_of_nobody_gives_up_after_a_while():
    quorum = begun(3)
    ready(quorum, 2, now=SILENT + 1)
    decision = quorum.decide(SILENT + 1)
    assert isinstance(decision, Pending)
    assert "worker 0 (host:0), worker 1 (host:1), which may continue without" in decision.text
    ready(quorum, 2, now=TIMEOUT + 1)
    assert isinstance(quorum.decide(TIMEOUT + 1), GiveUp)


def test_too_few_wait_for_newcomers_and_say_in_whose_place():
    quorum = begun(3, min_workers=3)
    ended(quorum, 1)
    ready(quorum, 0, 2)
    assert quorum.decide(0.0) == Pending(
        "1 more of at least 3 workers, in place of worker 1 (host:1)"
    )
    assert tasks(quorum.decide(0.0, (member(1, "b"),))) == [0, 1, 2]
    ready(quorum, 0, 2, now=TIMEOUT + 1)
    assert isinstance(quorum.decide(TIMEOUT + 1), GiveUp)


def test_newcomers_do_not_make_a_part_of_the_members_the_larger_one():
    quorum = begun(3)
    ready(quorum, 2, now=SILENT + 1)
    newcomers = (member(0, "b"), member(1, "b"))
    assert isinstance(quorum.decide(SILENT + 1, newcomers), Pending)


def test_a_task_is_given_to_one_process():
    quorum = begun(2)
    ready(quorum, 0, 1)
    newcomers = (member(1, "b"), member(2, "b"), member(2, "c"))
    decision = quorum.decide(0.0, newcomers)
    assert [one.incarnation for one in decision.members] == ["process 0", "process 1", "process 2c"]


def test_the_chief_comes_first():
    chief = Member("chief", 0, "host:9", "chief")
    quorum = begun(2)
    ready(quorum, 0, 1)
    assert [str(one.task) for one in quorum.decide(0.0, (chief,)).members] == [
        "chief 0",
        "worker 0",
        "worker 1",
    ]


def test_a_member_that_says_no_more_that_it_can_go_on_is_not_counted_on():
    quorum = begun(2)
    ready(quorum, 0, 1)
    ready(quorum, 0, now=5.0)
    assert quorum.decide(5.0) == Pending("worker 1 (host:1)")


def test_the_first_that_is_neither_gone_nor_silent_leads():
    quorum = begun(3)
    assert quorum.leader(0.0) == member(0)
    ended(quorum, 0)
    assert quorum.leader(0.0) == member(1)
    quorum.answered("process 2", now=SILENT)
    assert quorum.leader(SILENT + 1) == member(2)


def test_newcomers_that_stop_asking_are_forgotten():
    newcomers = JoinRequests()
    newcomers.add(member(1), now=0.0)
    newcomers.add(member(2), now=2.0)
    assert newcomers.pending(4.0) == (member(2),)
    newcomers.admit((member(2),))
    assert newcomers.pending(4.0) == ()


def test_a_generation_travels_as_plain_data():
    generation = begun(2).generation
    assert Generation.from_json(generation.to_json()) == generation
    assert generation.rank_of("process 1") == 1
    assert generation.rank_of("somebody") is None
    for wrong in (None, {}, {"number": "1"}, generation.to_json() | {"members": [3]}):
        with pytest.raises(RendezvousError, match="same version"):
            Generation.from_json(wrong)
