"""``ElasticJob``: workers in step that form anew when some are lost or others come."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.control_plane import join
from stratagem._src.control_plane.diagnosis import SILENT_SECONDS
from stratagem._src.control_plane.generation import Generation, Member, in_order, new_incarnation
from stratagem._src.control_plane.host import MeetingHost
from stratagem._src.control_plane.join import DEFAULT_TIMEOUT_SECONDS, WorkerName
from stratagem._src.control_plane.peers import Answer, Council
from stratagem._src.control_plane.program_folder import keep_programs
from stratagem._src.control_plane.quorum import GiveUp, Go, Succession
from stratagem._src.core.errors import UnavailableError
from stratagem._src.jax_compat import distributed_runtime as jax_runtime
from stratagem._src.mesh.backend_lifetime import end_backend_lifetime
from stratagem._src.mesh.devices import name_processes
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials

__all__ = ["ElasticJob", "JobOverError", "LeftBehindError"]

_log = logging.getLogger("stratagem")
_POLL_SECONDS = 0.1
_USHER_SECONDS = 0.25
_PAUSE_SECONDS = 0.25
_MOST_ATTEMPTS = 20


class LeftBehindError(UnavailableError):
    """The other workers have gone on without this one."""


class JobOverError(UnavailableError):
    """The other workers have come to the end of the training."""


class ElasticJob:
    """This process among the workers of an elastic job.

    Args:
        resolver: Says who the workers are, with addresses.
        timeout: Seconds that workers wait for each other; default 300.
        min_workers: How few may go on.

    Attributes:
        is_waiting: Whether the job runs already, and this process has not been let in yet.
        council: What the processes ask each other.
        min_workers: How few may go on.

    Raises:
        UnavailableError: If some worker does not come in time; it names those.
        BackendStartedError: If the JAX backend runs already.
    """

    def __init__(self, resolver: ClusterResolver, timeout: float | None, min_workers: int) -> None:
        jax_runtime.check_not_started()
        self.min_workers: int = min_workers
        self.is_waiting: bool = False
        self._timeout = timeout or DEFAULT_TIMEOUT_SECONDS
        self._local_device_ids = resolver.local_device_ids
        names, number = join.name_workers(resolver)
        self.planned: tuple[WorkerName, ...] = names
        self._addresses = [name.address for name in names if name.address is not None]
        mine = names[number]
        assert mine.address is not None
        me = Member(mine.job, mine.index, mine.address, new_incarnation())
        self._credentials = Credentials.from_environment()
        self.council: Council = Council(me, self._credentials, join.hosts_of(names))
        self._reached = time.monotonic()
        self._host: MeetingHost | None = None
        self._background = Background("the elastic job")
        self._closed = threading.Event()
        join.leave_at_exit()
        keep_programs()
        generation = self._gather()
        if generation is None:
            self.is_waiting = True
            jax_runtime.start_alone(self._local_device_ids, self._timeout + 1.0)
        else:
            self._form(generation)
        self._background.start(self._usher, name="elastic-usher")

    @property
    def me(self) -> Member:
        """This process."""
        return self.council.me

    @property
    def generation(self) -> Generation | None:
        """The generation that this process is in."""
        return self.council.generation

    # --- the first generation ---------------------------------------------------------------------------

    def _gather(self) -> Generation | None:
        """Returns the first generation, or ``None`` if the job runs already."""
        deadline = time.monotonic() + self._timeout
        leads = self.planned[0] == WorkerName(self.me.job, self.me.index, self.me.address)
        while True:
            answers = self._knock_at(self._addresses)
            for answer in answers:
                generation = answer.generation
                if generation is not None:
                    is_in = generation.rank_of(self.me.incarnation) is not None
                    return generation if is_in else None
            if leads:
                present = [*self.council.newcomers.waiting(time.monotonic()), self.me]
                if len({member.task for member in present}) == len(self.planned):
                    return self._decide(1, in_order(present))
            if time.monotonic() > deadline:
                here = {answer["by"] for answer in answers} | {self.me.incarnation}
                raise UnavailableError(
                    f"{self.me} waited {self._timeout:g} s for all {len(self.planned)} workers to "
                    f"start, but only {len(here)} did: {', '.join(map(str, self.planned))}. Start the "
                    "same program in each."
                )
            time.sleep(_POLL_SECONDS)

    def _knock_at(self, addresses: list[str]) -> list[Answer]:
        member = asdict(self.me)
        others = [address for address in addresses if address != self.me.address]
        answers = [self.council.call(address, "knock", member=member) for address in others]
        return [answer for answer in answers if answer is not None]

    # --- the next ones ------------------------------------------------------------------------------------

    def check_pause(self, boundary: int) -> bool:
        """Notes that a boundary is reached; returns whether to form anew there, with others."""
        council, now = self.council, time.monotonic()
        with council.lock:
            council.seconds_per_boundary, self._reached = now - self._reached, now
            council.boundary = boundary
            return council.pause_at is not None and boundary >= council.pause_at

    def next_generation(self) -> None:
        """Parts from the workers of before, and meets those that go on.

        The devices of before are gone when it returns.

        Raises:
            UnavailableError: If too few can go on.
            LeftBehindError: If the others have gone on without this process.
        """
        for attempts_left in reversed(range(_MOST_ATTEMPTS)):
            suspects = self._suspects()
            join.part()
            generation = self._wait_outside() if self.is_waiting else self._agree(suspects)
            jax_runtime.end_backends()
            end_backend_lifetime()
            try:
                self._form(generation)
                return
            except Exception as error:  # JAX's own, if a worker is lost while all connect
                if self._host is not None and join.joined_cluster() is None:
                    self._host.release()
                if not attempts_left:
                    raise
                _log.warning("The workers meet again: %s", error)

    def _wait_outside(self) -> Generation:
        """Asks to be let in until it is."""
        heard = time.monotonic()
        addresses = list(self._addresses)
        while time.monotonic() - heard < self._timeout:
            answers = self._knock_at(addresses)
            for answer in answers:
                generation = answer.generation
                if generation is None:
                    continue
                heard = time.monotonic()
                if generation.rank_of(self.me.incarnation) is not None:
                    self.council.adopt(generation)
                    self.is_waiting = False
                    return generation
                addresses += [m.address for m in generation.members if m.address not in addresses]
            if answers and all(answer.is_over for answer in answers):
                raise JobOverError(f"The job of {self.me} has come to its end without it.")
            time.sleep(_POLL_SECONDS)
        raise LeftBehindError(
            f"{self.me} asked the workers of its job to let it in, but they have ended, or do not "
            f"answer at {', '.join(addresses)}."
        )

    def _suspects(self) -> list[Member]:
        """Returns the members that have missed heartbeats for as long as the timeout."""
        joined, generation = join.joined_cluster(), self.generation
        if joined is None or generation is None:
            return []
        return [generation.members[rank] for rank in joined.watch.silent_workers()]

    def _agree(self, suspects: list[Member]) -> Generation:
        """Returns the next generation, when the members that can go on have agreed on it."""
        council = self.council
        while True:
            basis = self.generation
            assert basis is not None
            now = time.monotonic()
            succession = Succession(basis, self.min_workers, SILENT_SECONDS, self._timeout, now=now)
            for member in suspects:
                succession.suspect(member.incarnation)
            council.begin_succession(succession)
            try:
                agreed = self._agree_on(succession)
            finally:
                council.begin_succession(None)
            if agreed is not None:
                return agreed

    def _agree_on(self, succession: Succession) -> Generation | None:
        """Returns what follows a generation; ``None`` if another was decided on since."""
        council, basis = self.council, succession.generation
        while True:
            now = time.monotonic()
            with council.lock:
                if council.generation is not basis:
                    return None
                succession.ready(self.me.incarnation, now=now)
                leader = succession.leader(now)
                newcomers = council.newcomers.waiting(now)
                verdict = succession.verdict(now, newcomers)
            if isinstance(verdict, GiveUp):
                raise UnavailableError(
                    f"{self.me} waited {self._timeout:g} s to go on after workers were lost, but for "
                    f"{verdict.text}. Start all workers again, from a checkpoint."
                )
            if leader == self.me:
                if isinstance(verdict, Go):
                    return self._decide(basis.number + 1, verdict.members)
                self._look_for_others(succession)
            else:
                assert leader is not None  # or this process, which is neither silent nor ended
                decided = self._report_to(leader, succession)
                if decided is not None:
                    return decided
            time.sleep(_POLL_SECONDS)

    def _report_to(self, leader: Member, succession: Succession) -> Generation | None:
        """Says that this process can go on; returns the next generation if it has been decided on."""
        basis = succession.generation
        answer = self.council.call(
            leader.address, "ready", by=self.me.incarnation, generation=basis.to_json()
        )
        if answer is None or answer["by"] != leader.incarnation:
            self._note_end(leader, succession)
            return None
        succession.answered(leader.incarnation, now=time.monotonic())
        decided = answer.generation
        if answer.is_over:
            raise JobOverError(f"{leader} has come to the end of the training.")
        if answer.is_left:
            raise LeftBehindError(
                f"{self.me} was not heard of for some time, and the other workers of its job have gone "
                "on without it."
            )
        if decided is None or decided.number <= basis.number:
            return None
        self.council.adopt(decided)
        return decided

    def _look_for_others(self, succession: Succession) -> None:
        """Asks the members that have not said that they can go on what has become of them.

        A silent one keeps whoever asks it for seconds. So it is asked only if everybody else is ready,
        and this part of the members is too small to go on, unless it is known that the others ended.
        """
        now = time.monotonic()
        missing = [
            member
            for member in succession.generation.members
            if member != self.me
            and not succession.has_ended(member)
            and not succession.is_ready(member, now)
        ]
        awaited = [member for member in missing if not succession.is_silent(member, now)]
        for member in awaited or missing:
            answer = self.council.call(member.address, "ask")
            if answer is None or answer["by"] != member.incarnation:
                self._note_end(member, succession)
            elif self._is_elsewhere(answer, succession.generation):
                raise LeftBehindError(
                    f"{self.me} was not heard of for some time, and {member} has gone on with others."
                )
            else:
                succession.answered(member.incarnation, now=time.monotonic())

    def _is_elsewhere(self, answer: Answer, basis: Generation) -> bool:
        theirs = answer.generation
        return (
            theirs is not None
            and theirs.number > basis.number
            and theirs.rank_of(self.me.incarnation) is None
        )

    def _note_end(self, member: Member, succession: Succession) -> None:
        if self.council.has_ended(member):
            succession.ended(member.incarnation)

    # --- forming ------------------------------------------------------------------------------------------

    def _decide(self, number: int, members: tuple[Member, ...]) -> Generation:
        """Has the meeting point of the next generation started, and lets the others know of it."""
        meeting, self._host = "", None
        if len(members) > 1:
            where = Address(Address.parse(self.me.address).host, 0)
            self._host = MeetingHost(
                where, len(members), self._credentials, join.hosts_of(self.planned)
            )
            meeting = str(self._host.address)
        generation = Generation(number, self.me.incarnation, members, meeting)
        self.council.adopt(generation)
        return generation

    def _form(self, generation: Generation) -> None:
        council = self.council
        if council.generation is not generation:
            council.adopt(generation)
        rank = generation.rank_of(self.me.incarnation)
        assert rank is not None
        names = tuple(WorkerName(m.job, m.index, m.address) for m in generation.members)
        host = self._host if generation.decided_by == self.me.incarnation else None
        if len(names) == 1:
            jax_runtime.start_alone(self._local_device_ids, self._timeout + 1.0)
            name_processes([(names[0].job, names[0].index)])
        else:
            join.meet(
                names,
                rank,
                Address.parse(generation.meeting),
                self._credentials,
                host,
                self._timeout,
                local_device_ids=self._local_device_ids,
                beside=generation.rank_of(generation.decided_by) or 0,
                find_ended=lambda number: council.has_ended(generation.members[number]),
            )
        _log.info(
            "Generation %d of the workers: %s.", generation.number, ", ".join(map(str, names))
        )

    # --- letting others in --------------------------------------------------------------------------------

    def _usher(self) -> None:
        """Has all members stop at one boundary when somebody waits outside."""
        while not self._closed.wait(_USHER_SECONDS):
            council = self.council
            with council.lock:
                generation, boundary = council.generation, council.boundary
                is_first = generation is not None and generation.members[0] == self.me
                is_asked = is_first and bool(council.newcomers.waiting(time.monotonic()))
                if not is_asked or council.is_over or boundary == 0 or council.pause_at is not None:
                    continue
            assert generation is not None
            at = boundary + 2 + int(_PAUSE_SECONDS / max(council.seconds_per_boundary, 1e-4))
            for member in generation.members:
                council.call(member.address, "pause", generation=generation.identity, at=at)

    def finish(self) -> None:
        """Trains no more: nobody is let in."""
        self.council.is_over = True
        self._closed.set()
