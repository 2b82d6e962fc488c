"""``OuterRounds``: the membership of islands in outer steps, as a state machine without I/O.

An island is *waiting* until it is admitted, then a *member* until it is *gone*: lost, left, or dropped
because it was late. Members contribute to the current round; it closes when all of them have. Waiting
islands are admitted when a round closes, and take the state that the other members have then.

When no member is left, the waiting islands form again with the most advanced state that any of them has. If
that is the state of an earlier round, as after a checkpoint was restored, the round is repeated, and all
islands that were members when it began are waited for: also one that was lost before the others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from stratagem._src.core.errors import InvalidArgumentError, UnavailableError

__all__ = ["ClosedRound", "IslandMembership", "IslandState", "OuterRounds"]

_MAX_TICK_GAP = 2.0


class IslandState(enum.Enum):
    """The state of an island."""

    WAITING = "waiting"
    MEMBER = "member"
    GONE = "gone"


@dataclass
class IslandMembership:
    """One membership of an island, from its join until it is gone.

    Attributes:
        island: The index of the island.
        session: The number of this membership; an island that rejoins gets another.
        round: The round of the outer state that the island had when it joined.
        digest: A checksum of that state.
        timeout: Seconds that this island is willing to wait for others.
        heard: The time of its last heartbeat.
        progressed: The time of its last inner step, or of its join.
        num_steps: The number of its inner steps.
        standing: Its state.
        takes_state: Whether it still needs the outer state of the others.
        contributed: The time of its contribution to the current round, if any.
        why_gone: Why it is gone, for its own error.
        is_replaced: Whether another process has joined with the index of the island.
    """

    island: int
    session: int
    round: int
    digest: str
    timeout: float
    heard: float
    progressed: float
    num_steps: int = -1
    standing: IslandState = IslandState.WAITING
    takes_state: bool = False
    contributed: float | None = None
    why_gone: str = ""
    is_replaced: bool = False


@dataclass(frozen=True)
class ClosedRound:
    """A closed round.

    Attributes:
        round: Its number.
        sessions: The sessions that contributed, in the order of islands.
    """

    round: int
    sessions: tuple[int, ...]


class OuterRounds:
    """Decides which islands take part in which round.

    >>> from stratagem._src.control_plane.island_server.outer_rounds import OuterRounds
    >>> rounds = OuterRounds(2)
    >>> a = rounds.join(0, 0, "same", 60.0, now=0.0)
    >>> b = rounds.join(1, 0, "same", 60.0, now=0.0)
    >>> rounds.contribute(a, 0, now=1.0), rounds.closed
    (None, None)
    >>> rounds.contribute(b, 0, now=2.0)
    >>> rounds.closed, rounds.round
    (ClosedRound(round=0, sessions=(1, 2)), 1)

    Args:
        num_islands: The number of islands that the first round waits for.
        heartbeat_timeout: Seconds without a heartbeat after which an island is lost.
        log: Called with messages about islands that join, leave or are lost.

    Attributes:
        round: The current round.
        closed: The previous round, if one has closed since the islands formed.
    """

    def __init__(
        self,
        num_islands: int,
        heartbeat_timeout: float = 10.0,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        if num_islands < 1:
            raise InvalidArgumentError(f"num_islands must be at least 1, got {num_islands}.")
        self.round = 0
        self.closed: ClosedRound | None = None
        self._num_islands = num_islands
        self._heartbeat_timeout = heartbeat_timeout
        self._log = log
        self._sessions: dict[int, IslandMembership] = {}
        self._last_session = 0
        self._contributions: dict[int, int] = {}
        self._expected = set(range(num_islands))
        # The members at the beginning of rounds, at each round at which they changed.
        self._members_from: dict[int, frozenset[int]] = {}
        self._forming_since: float | None = None
        self._state_round: int | None = None
        self._last_tick: float | None = None

    # --- events from islands --------------------------------------------------------------------------

    def join(self, island: int, round: int, digest: str, timeout: float, now: float) -> int:
        """Adds an island with the outer state it has, and returns the number of its session.

        An earlier session of the same island ends.

        Raises:
            InvalidArgumentError: If there is no such island.
        """
        if not 0 <= island < self._num_islands:
            raise InvalidArgumentError(
                f"The index of an island must be from 0 to {self._num_islands - 1}, got {island}. Start "
                "the server with the right number of islands (--islands)."
            )
        for former in self._present():
            if former.island == island:
                former.is_replaced = True
                self._end(former, "joined again")
        self._last_session += 1
        session = self._last_session
        self._sessions[session] = IslandMembership(
            island, session, round, digest, timeout, now, now
        )
        self._expected.add(island)
        if self._forming_since is None:
            self._forming_since = now
        self._settle(now)
        return session

    def heartbeat(self, session: int, num_steps: int, now: float) -> None:
        """Records a heartbeat.

        Raises:
            UnavailableError: If the island is gone already.
        """
        island = self._of(session)
        island.heard = now
        if num_steps != island.num_steps:
            island.num_steps, island.progressed = num_steps, now

    def contribute(self, session: int, round: int, now: float) -> None:
        """Records the contribution of an island to the current round.

        Raises:
            UnavailableError: If the island is not a member, or the round is closed.
        """
        island = self._of(session)
        if island.standing is not IslandState.MEMBER or island.takes_state or round != self.round:
            self._end(island, f"contributed to round {round} in round {self.round}")
            self._settle(now)
            raise UnavailableError(self._sessions[session].why_gone)
        island.heard = island.progressed = now
        island.contributed = now
        self._contributions[island.island] = session
        self._settle(now)

    def lose(self, session: int, why: str, now: float) -> None:
        """Records that an island is gone; a no-op if that is already known."""
        island = self._sessions.get(session)
        if island is not None and island.standing is not IslandState.GONE:
            self._end(island, why)
            self._settle(now)

    def leave(self, session: int, now: float) -> None:
        """Records that an island has finished; later rounds do not wait for it."""
        island = self._sessions.get(session)
        if island is not None:
            self._expected.discard(island.island)
            for number, members in self._members_from.items():
                self._members_from[number] = members - {island.island}
            self.lose(session, "has left", now)

    def give_state(self, session: int, round: int) -> bool:
        """Records that a member has sent its outer state; returns whether the state is needed."""
        self._of(session)
        if round != self.round or self._state_round == round:
            return False
        self._state_round = round
        return True

    def took_state(self, session: int) -> None:
        """Records that an island has received the outer state of the others."""
        self._of(session).takes_state = False

    # --- passage of time ------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Drops islands that miss heartbeats or are late, and starts a round when its wait is over."""
        if self._last_tick is not None and now - self._last_tick > _MAX_TICK_GAP:
            # This process was suspended. The islands may have sent heartbeats meanwhile.
            for island in self._present():
                island.heard += now - self._last_tick
        self._last_tick = now
        for island in self._present():
            age = now - island.heard
            if age > self._heartbeat_timeout:
                self._end(island, f"has sent no heartbeat for {age:.1f} s")
        self._settle(now)

    # --- queries --------------------------------------------------------------------------------------

    def of(self, session: int) -> IslandMembership:
        """Returns the membership with a session number.

        Raises:
            UnavailableError: If it is gone.
            InvalidArgumentError: If another process has joined in its place.
        """
        return self._of(session)

    @property
    def members(self) -> list[int]:
        """The islands that take part in the current round."""
        return [island.island for island in self._members()]

    def waited_for(self) -> list[int]:
        """Returns the islands that the current round, or the start of the first one, waits for."""
        members = self._members()
        if members:
            return [island.island for island in members if island.contributed is None]
        present = self._present()
        latest = max((island.round for island in present), default=self.round)
        wanted = self._expected | self._members_of(latest)
        return sorted(wanted - {island.island for island in present})

    def seconds_without_progress(self, now: float) -> float:
        """Returns the seconds since the last inner step of any member."""
        return min((now - island.progressed for island in self._members()), default=0.0)

    def contribution_timeout(self) -> float:
        """Returns the seconds that a round waits for members that do not contribute."""
        return max((island.timeout for island in self._members()), default=0.0)

    def present(self) -> list[int]:
        """Returns the islands that wait or take part."""
        return [island.island for island in self._present()]

    def donor(self) -> int | None:
        """Returns the session of the member that should send its state, if other members need it."""
        members = self._members()
        if self._state_round == self.round or not any(m.takes_state for m in members):
            return None
        return next((m.session for m in members if not m.takes_state), None)

    def state_is_ready(self) -> bool:
        """Returns whether a member has sent the state of the current round."""
        return self._state_round == self.round

    # --- the rules ------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        members = self._members()
        if members and all(m.takes_state for m in members) and not self.state_is_ready():
            # The islands with the state are gone: the others start over from the states they joined with.
            for member in members:
                member.standing, member.takes_state = IslandState.WAITING, False
            members = []
        if not members:
            self._contributions.clear()
            self._form(now)
            return
        late = [m for m in members if m.contributed is None]
        if late and self._is_overdue(members, now):
            for member in late:
                self._end(member, f"has not contributed to round {self.round} before the deadline")
            late = []
        if not late:
            self._close()
            self._settle(now)

    def _is_overdue(self, members: list[IslandMembership], now: float) -> bool:
        first = min((m.contributed for m in members if m.contributed is not None), default=None)
        return first is not None and now - first > self.contribution_timeout()

    def _close(self) -> None:
        order = sorted(self._contributions)
        sessions = tuple(self._contributions[island] for island in order)
        self.closed = ClosedRound(self.round, sessions)
        self.round += 1
        self._contributions.clear()
        for member in self._members():
            member.contributed = None
        for island in self._present():
            if island.standing is IslandState.WAITING:
                island.standing, island.takes_state = IslandState.MEMBER, True
                self._log(f"island {island.island} is admitted to round {self.round}")
        self._expect_members()

    def _form(self, now: float) -> None:
        waiting = [i for i in self._present() if i.standing is IslandState.WAITING]
        if not waiting:
            self._forming_since = None
            return
        if self._forming_since is None:
            self._forming_since = now
        # Islands that come back with the rounds 7, 5 and 7 resume round 7 with the state of the first of
        # them; the one at round 5 takes that state, and its own steps since are lost.
        source = max(waiting, key=lambda island: (island.round, -island.island))
        wanted = self._expected | self._members_of(source.round)
        missing = wanted - {island.island for island in waiting}
        timeout = max(island.timeout for island in waiting)
        if missing and now - self._forming_since <= timeout:
            return
        self.round, self.closed, self._state_round = source.round, None, None
        for island in waiting:
            same = (island.round, island.digest) == (source.round, source.digest)
            island.standing, island.takes_state = IslandState.MEMBER, not same
            island.progressed = now
        self._members_from = {
            number: members for number, members in self._members_from.items() if number < self.round
        }
        self._expect_members()
        self._forming_since = None
        if missing:
            self._log(f"islands {sorted(missing)} did not join in time; the others start")
        self._log(f"islands {self.members} start with round {self.round}")

    def _expect_members(self) -> None:
        """Records the members of the current round: if all are lost at once, they wait for each other."""
        members = frozenset(self.members)
        self._expected = set(members)
        if members != self._members_of(self.round):
            self._members_from[self.round] = members

    def _members_of(self, round: int) -> frozenset[int]:
        """Returns the members at the beginning of a round, as far as this server knows."""
        known = [number for number in self._members_from if number <= round]
        return self._members_from[max(known)] if known else frozenset()

    def _end(self, island: IslandMembership, why: str) -> None:
        island.standing = IslandState.GONE
        island.why_gone = f"island {island.island} {why}"
        self._log(f"{island.why_gone}; {len(self._members())} members are left")

    def _of(self, session: int) -> IslandMembership:
        island = self._sessions.get(session)
        if island is None:
            raise UnavailableError(f"The island server does not know the session {session}.")
        if island.is_replaced:
            # An error, because two processes with one index would otherwise replace each other forever. A
            # process that lost its connection and rejoins never uses its former session.
            raise InvalidArgumentError(
                f"Each island must have its own index, but another process has joined as island "
                f"{island.island}. Start each island once, with its own STRATAGEM_ISLAND."
            )
        if island.standing is IslandState.GONE:
            raise UnavailableError(island.why_gone)
        return island

    def _present(self) -> list[IslandMembership]:
        present = [i for i in self._sessions.values() if i.standing is not IslandState.GONE]
        return sorted(present, key=lambda island: island.island)

    def _members(self) -> list[IslandMembership]:
        return [i for i in self._present() if i.standing is IslandState.MEMBER]
