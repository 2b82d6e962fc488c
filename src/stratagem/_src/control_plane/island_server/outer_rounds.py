"""``OuterRounds``: who takes part in which outer step, as a state machine without I/O.

An island is *waiting* until it is admitted, then a *member*, until it is *gone*: lost, left, or dropped
because it came too late. Members contribute to the present round; it closes when all of them have. Those
that wait are admitted when a round closes, and take the state that other members have then.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from stratagem._src.core.errors import InvalidArgumentError, UnavailableError

__all__ = ["Attendance", "ClosedRound", "OuterRounds", "Standing"]

_MAX_TICK_GAP = 2.0


class Standing(enum.Enum):
    """Where an island stands."""

    WAITING = "waiting"
    MEMBER = "member"
    GONE = "gone"


@dataclass
class Attendance:
    """One stay of an island, from its join until it is gone.

    Attributes:
        island: Which island.
        session: The number of this stay; an island that returns has another.
        round: The round whose outer state the island brought along.
        digest: A checksum of that state.
        timeout: How many seconds others may let this island wait.
        heard: When it was last heard of.
        progressed: When it last made an inner step, or came.
        num_steps: How many inner steps it has made.
        standing: Where it stands.
        takes_state: Whether it still needs the outer state of the others.
        contributed: When it contributed to the present round, if it did.
        why_gone: Why it is gone, for its own error.
        is_replaced: Whether another process has joined with the number of the island.
    """

    island: int
    session: int
    round: int
    digest: str
    timeout: float
    heard: float
    progressed: float
    num_steps: int = -1
    standing: Standing = Standing.WAITING
    takes_state: bool = False
    contributed: float | None = None
    why_gone: str = ""
    is_replaced: bool = False


@dataclass(frozen=True)
class ClosedRound:
    """A round that is over.

    Attributes:
        round: Its number.
        sessions: Those that contributed, in the order of islands.
    """

    round: int
    sessions: tuple[int, ...]


class OuterRounds:
    """Who is in which round.

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
        num_islands: How many islands the first round waits for.
        heartbeat_timeout: After how many seconds of silence an island is lost.
        log: Called with what happens to islands.

    Attributes:
        round: The present round.
        closed: The round before, if there was one since the islands met.
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
        self._sessions: dict[int, Attendance] = {}
        self._last_session = 0
        self._contributions: dict[int, int] = {}
        self._expected = set(range(num_islands))
        self._forming_since: float | None = None
        self._state_round: int | None = None
        self._last_tick: float | None = None

    # --- what islands do ------------------------------------------------------------------------------

    def join(self, island: int, round: int, digest: str, timeout: float, now: float) -> int:
        """Takes in an island with the outer state it has, and returns the number of its session.

        An earlier session of the same island is lost by that.

        Raises:
            InvalidArgumentError: If there is no such island.
        """
        if not 0 <= island < self._num_islands:
            raise InvalidArgumentError(
                f"The number of an island must be from 0 to {self._num_islands - 1}, got {island}. Start "
                "the server with the number of islands that there are (--islands)."
            )
        for former in self._present():
            if former.island == island:
                former.is_replaced = True
                self._end(former, "joined again")
        self._last_session += 1
        session = self._last_session
        self._sessions[session] = Attendance(island, session, round, digest, timeout, now, now)
        self._expected.add(island)
        if self._forming_since is None:
            self._forming_since = now
        self._settle(now)
        return session

    def hear(self, session: int, num_steps: int, now: float) -> None:
        """Takes in a heartbeat.

        Raises:
            UnavailableError: If the island is gone already.
        """
        island = self._of(session)
        island.heard = now
        if num_steps != island.num_steps:
            island.num_steps, island.progressed = num_steps, now

    def contribute(self, session: int, round: int, now: float) -> None:
        """Takes in that an island has contributed to the present round.

        Raises:
            UnavailableError: If it is not a member, or the round is over.
        """
        island = self._of(session)
        if island.standing is not Standing.MEMBER or island.takes_state or round != self.round:
            self._end(island, f"contributed to round {round} in round {self.round}")
            self._settle(now)
            raise UnavailableError(self._sessions[session].why_gone)
        island.heard = island.progressed = now
        island.contributed = now
        self._contributions[island.island] = session
        self._settle(now)

    def lose(self, session: int, why: str, now: float) -> None:
        """Takes in that an island is gone; without effect if that is known."""
        island = self._sessions.get(session)
        if island is not None and island.standing is not Standing.GONE:
            self._end(island, why)
            self._settle(now)

    def leave(self, session: int, now: float) -> None:
        """Takes in that an island has come to its end, and is not waited for any more."""
        island = self._sessions.get(session)
        if island is not None:
            self._expected.discard(island.island)
            self.lose(session, "has left", now)

    def give_state(self, session: int, round: int) -> bool:
        """Takes in that a member has given its outer state, and returns whether it is of use."""
        self._of(session)
        if round != self.round or self._state_round == round:
            return False
        self._state_round = round
        return True

    def took_state(self, session: int) -> None:
        """Takes in that an island has the outer state of the others."""
        self._of(session).takes_state = False

    # --- what it follows from time --------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Drops islands that are silent or late, and begins a round that has waited long enough."""
        if self._last_tick is not None and now - self._last_tick > _MAX_TICK_GAP:
            # This process was suspended; that is no silence of the islands.
            for island in self._present():
                island.heard += now - self._last_tick
        self._last_tick = now
        for island in self._present():
            silence = now - island.heard
            if silence > self._heartbeat_timeout:
                self._end(island, f"has sent no heartbeat for {silence:.1f} s")
        self._settle(now)

    # --- what is asked --------------------------------------------------------------------------------

    def of(self, session: int) -> Attendance:
        """Returns how an island stands.

        Raises:
            UnavailableError: If it is gone.
            InvalidArgumentError: If another process has joined in its place.
        """
        return self._of(session)

    @property
    def members(self) -> list[int]:
        """The islands that take part in the present round."""
        return [island.island for island in self._members()]

    def waited_for(self) -> list[int]:
        """Returns the islands without which the present round, or the first one, does not go on."""
        members = self._members()
        if members:
            return [island.island for island in members if island.contributed is None]
        here = {island.island for island in self._present()}
        return sorted(self._expected - here)

    def seconds_without_progress(self, now: float) -> float:
        """Returns for how long no member has made a step."""
        return min((now - island.progressed for island in self._members()), default=0.0)

    def patience(self) -> float:
        """Returns for how many seconds members that do not contribute are waited for."""
        return max((island.timeout for island in self._members()), default=0.0)

    def present(self) -> list[int]:
        """Returns the islands that wait or take part."""
        return [island.island for island in self._present()]

    def donor(self) -> int | None:
        """Returns the session of the member that is to give its state for others, if some need it."""
        members = self._members()
        if self._state_round == self.round or not any(m.takes_state for m in members):
            return None
        return next((m.session for m in members if not m.takes_state), None)

    def state_is_ready(self) -> bool:
        """Returns whether the state of the present round was given."""
        return self._state_round == self.round

    # --- the rules ------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        members = self._members()
        if members and all(m.takes_state for m in members) and not self.state_is_ready():
            # The islands that had the state are gone: the others begin with what they brought along.
            for member in members:
                member.standing, member.takes_state = Standing.WAITING, False
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

    def _is_overdue(self, members: list[Attendance], now: float) -> bool:
        first = min((m.contributed for m in members if m.contributed is not None), default=None)
        return first is not None and now - first > self.patience()

    def _close(self) -> None:
        order = sorted(self._contributions)
        sessions = tuple(self._contributions[island] for island in order)
        self.closed = ClosedRound(self.round, sessions)
        self.round += 1
        self._contributions.clear()
        for member in self._members():
            member.contributed = None
        for island in self._present():
            if island.standing is Standing.WAITING:
                island.standing, island.takes_state = Standing.MEMBER, True
                self._log(f"island {island.island} is admitted to round {self.round}")
        # If all of these are lost at once, as when a whole job is started again, they wait for each other.
        self._expected = set(self.members)

    def _form(self, now: float) -> None:
        waiting = [i for i in self._present() if i.standing is Standing.WAITING]
        if not waiting:
            self._forming_since = None
            return
        if self._forming_since is None:
            self._forming_since = now
        missing = self._expected - {island.island for island in waiting}
        patience = max(island.timeout for island in waiting)
        if missing and now - self._forming_since <= patience:
            return
        source = max(waiting, key=lambda island: (island.round, -island.island))
        self.round, self.closed, self._state_round = source.round, None, None
        for island in waiting:
            same = (island.round, island.digest) == (source.round, source.digest)
            island.standing, island.takes_state = Standing.MEMBER, not same
            island.progressed = now
        self._expected = set(self.members)
        self._forming_since = None
        if missing:
            self._log(f"islands {sorted(missing)} have not come in time; the others begin")
        self._log(f"islands {self.members} begin with round {self.round}")

    def _end(self, island: Attendance, why: str) -> None:
        island.standing = Standing.GONE
        island.why_gone = f"island {island.island} {why}"
        self._log(f"{island.why_gone}; {len(self._members())} members are left")

    def _of(self, session: int) -> Attendance:
        island = self._sessions.get(session)
        if island is None:
            raise UnavailableError(
                f"The server of the islands does not know the session {session}."
            )
        if island.is_replaced:
            # Were it to join again, the two would take each other's place for ever. A process that has
            # lost its connection and joins again never asks with its former session.
            raise InvalidArgumentError(
                f"Each island must have a number of its own, but another process has joined as island "
                f"{island.island}. Start each island once, with its own STRATAGEM_ISLAND."
            )
        if island.standing is Standing.GONE:
            raise UnavailableError(island.why_gone)
        return island

    def _present(self) -> list[Attendance]:
        present = [i for i in self._sessions.values() if i.standing is not Standing.GONE]
        return sorted(present, key=lambda island: island.island)

    def _members(self) -> list[Attendance]:
        return [i for i in self._present() if i.standing is Standing.MEMBER]
