"""Who takes part in which outer round: what islands do, at what second, and who is a member then."""

import pytest

from stratagem._src.control_plane.island_server.outer_rounds import IslandState, OuterRounds
from stratagem._src.core.errors import InvalidArgumentError, UnavailableError

TIMEOUT = 60.0
J, C, L, E, T, H = "join", "contribute", "lose", "leave", "tick", "hear"

# Each line of a script is (second, event, island, ...); then the members and the round.
CASES = {
    "the first round waits for all": ([(0, J, 0)], [], 0),
    "all have come": ([(0, J, 0), (9, J, 1)], [0, 1], 0),
    "one never comes": ([(0, J, 0), (5, H, 0), (14, H, 0), (61, H, 0), (61, T)], [0], 0),
    "a round needs all members": ([(0, J, 0), (0, J, 1), (1, C, 0)], [0, 1], 0),
    "a round closes": ([(0, J, 0), (0, J, 1), (1, C, 0), (2, C, 1)], [0, 1], 1),
    "the last that is waited for is lost": (
        [(0, J, 0), (0, J, 1), (1, C, 0), (2, L, 1)],
        [0],
        1,
    ),
    "a silent island is lost": (
        [(0, J, 0), (0, J, 1), (1, C, 0), (9, H, 0), (10.5, T)],
        [0],
        1,
    ),
    "what a lost island has contributed counts": (
        [(0, J, 0), (0, J, 1), (1, C, 1), (2, L, 1), (3, C, 0)],
        [0],
        1,
    ),
    "a late island is dropped": (
        [
            (0, J, 0),
            (0, J, 1),
            (1, C, 0),
            *[(s, H, i) for s in range(2, 63, 2) for i in (0, 1)],
            (62, T),
        ],
        [0],
        1,
    ),
    "one that returns waits for the end of the round": (
        [(0, J, 0), (0, J, 1), (1, L, 1), (2, J, 1)],
        [0],
        0,
    ),
    "one that returns is admitted then": (
        [(0, J, 0), (0, J, 1), (1, L, 1), (2, J, 1), (3, C, 0)],
        [0, 1],
        1,
    ),
    "one that restarts before it was missed": (
        [(0, J, 0), (0, J, 1), (1, C, 0), (2, J, 1)],
        [0, 1],
        1,
    ),
    "all are lost at once, and wait for each other": (
        [(0, J, 0), (0, J, 1), (1, L, 0), (1, L, 1), (2, J, 1)],
        [],
        0,
    ),
    "one that was lost before is not waited for": (
        [(0, J, 0), (0, J, 1), (1, L, 0), (2, C, 1), (3, L, 1), (4, J, 1, 1, "same")],
        [1],
        1,
    ),
    "a repeated round waits for one that was lost before it closed": (
        [(0, J, 0), (0, J, 1), (1, L, 0), (2, C, 1), (3, L, 1), (4, J, 1)],
        [],
        1,
    ),
    "and has all its members again": (
        [(0, J, 0), (0, J, 1), (1, L, 0), (2, C, 1), (3, L, 1), (4, J, 1), (5, J, 0)],
        [0, 1],
        0,
    ),
    "one that contributed and was lost is waited for too": (
        [(0, J, 0), (0, J, 1), (1, C, 0), (2, L, 0), (3, C, 1), (4, L, 1), (5, J, 1), (6, J, 0)],
        [0, 1],
        0,
    ),
    "a round of a checkpoint from before is repeated by its members": (
        [
            *[(0, J, 0), (0, J, 1), (1, C, 0), (1, C, 1), (2, L, 0)],
            *[(3, C, 1), (4, C, 1), (5, C, 1), (6, L, 1)],
            *[(7, J, 1, 1, "same")],
        ],
        [],
        4,
    ),
    "and a later one is not": (
        [
            *[(0, J, 0), (0, J, 1), (1, C, 0), (1, C, 1), (2, L, 0)],
            *[(3, C, 1), (4, C, 1), (5, C, 1), (6, L, 1)],
            *[(7, J, 1, 2, "same")],
        ],
        [1],
        2,
    ),
    "a repeated round waits no longer than the deadline": (
        [
            *[(0, J, 0), (0, J, 1), (1, L, 0), (2, C, 1), (3, L, 1), (4, J, 1)],
            *[(s, H, 1) for s in range(5, 66, 2)],
            (65, T),
        ],
        [1],
        0,
    ),
    "nor for one that has left": (
        [(0, J, 0), (0, J, 1), (1, E, 0), (2, C, 1), (3, L, 1), (4, J, 1)],
        [1],
        0,
    ),
    "one that has left is not waited for": (
        [(0, J, 0), (0, J, 1), (1, E, 0), (1, L, 1), (2, J, 1)],
        [1],
        0,
    ),
    "the farthest is the source": (
        [(0, J, 0, 3, "a"), (0, J, 1, 7, "b")],
        [0, 1],
        7,
    ),
}


def play(script, num_islands=2):
    rounds, sessions = OuterRounds(num_islands), {}
    for now, event, *rest in script:
        if event == T:
            rounds.tick(float(now))
            continue
        island, *more = rest
        if event == J:
            brought = more or [0, "same"]
            sessions[island] = rounds.join(island, *brought, TIMEOUT, float(now))
        elif event == C:
            rounds.contribute(sessions[island], rounds.round, float(now))
        elif event == L:
            rounds.lose(sessions[island], "was killed", float(now))
        elif event == E:
            rounds.leave(sessions[island], float(now))
        else:
            rounds.heartbeat(sessions[island], int(now), float(now))
    return rounds, sessions


@pytest.mark.parametrize("case", CASES)
def test_members(case):
    script, members, number = CASES[case]
    rounds, _ = play(script)
    assert (rounds.members, rounds.round) == (members, number)


def test_a_round_has_the_contributions_of_those_that_came():
    rounds, sessions = play([(0, J, 0), (0, J, 1), (1, C, 1), (2, L, 1), (3, C, 0)])
    assert rounds.closed.sessions == (sessions[0], sessions[1])
    rounds.contribute(sessions[0], 1, 4.0)
    assert rounds.closed.sessions == (sessions[0],)


@pytest.mark.parametrize(
    ("brought", "takes"),
    [
        ({0: (0, "a"), 1: (0, "a")}, {0: False, 1: False}),
        ({0: (0, "a"), 1: (0, "b")}, {0: False, 1: True}),
        ({0: (3, "a"), 1: (4, "a")}, {0: True, 1: False}),
        ({0: (4, "a"), 1: (4, "a")}, {0: False, 1: False}),
    ],
)
def test_who_takes_whose_state_at_the_start(brought, takes):
    rounds, sessions = play([(0, J, island, *what) for island, what in brought.items()])
    assert {i: rounds.of(s).takes_state for i, s in sessions.items()} == takes
    source = next(i for i, takes_it in takes.items() if not takes_it)
    assert rounds.donor() == (sessions[source] if any(takes.values()) else None)


def test_a_returning_island_takes_the_state_of_the_new_round():
    rounds, sessions = play([(0, J, 0), (0, J, 1), (1, L, 1), (2, J, 1), (3, C, 0)])
    assert rounds.of(sessions[1]).takes_state
    assert rounds.donor() == sessions[0]
    assert not rounds.give_state(sessions[0], 0)  # that of the round before
    assert rounds.give_state(sessions[0], 1)
    assert rounds.state_is_ready()
    assert rounds.donor() is None
    rounds.took_state(sessions[1])
    rounds.contribute(sessions[1], 1, 4.0)


def test_those_left_without_a_donor_begin_with_what_they_have():
    rounds, sessions = play([(0, J, 0), (0, J, 1, 0, "other"), (1, E, 0)])
    assert rounds.members == [1]
    assert not rounds.of(sessions[1]).takes_state


def test_a_contribution_to_another_round_is_refused():
    rounds, sessions = play([(0, J, 0), (0, J, 1), (1, C, 0), (2, C, 1)])
    with pytest.raises(UnavailableError, match="contributed to round 0 in round 1"):
        rounds.contribute(sessions[0], 0, 3.0)
    assert rounds.members == [1]
    with pytest.raises(UnavailableError, match="island 0"):
        rounds.heartbeat(sessions[0], 5, 4.0)


def test_who_is_waited_for():
    rounds, sessions = play([(0, J, 1)], num_islands=3)
    assert rounds.waited_for() == [0, 2]
    assert rounds.of(sessions[1]).standing is IslandState.WAITING
    rounds, _ = play([(0, J, 0), (0, J, 1), (1, L, 0), (2, C, 1), (3, L, 1), (4, J, 1)])
    assert rounds.waited_for() == [0]
    rounds, _ = play([(0, J, 0), (0, J, 1), (1, C, 0)])
    assert rounds.waited_for() == [1]
    assert rounds.seconds_without_progress(5.0) == 4.0


def test_a_server_that_was_suspended_drops_nobody():
    rounds, _ = play([(0, J, 0), (0, J, 1), (0.5, T), (100, T)])
    assert rounds.members == [0, 1]


def test_an_island_that_there_is_not():
    with pytest.raises(InvalidArgumentError, match="from 0 to 1, got 2"):
        play([(0, J, 2)])
