"""``ElasticJob``: data-parallel workers that re-form when some are lost or others join."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.control_plane import join
from stratagem._src.control_plane.coordinated_stop import (
    ClusterBroadcast,
    CoordinatedStop,
    LocalBroadcast,
)
from stratagem._src.control_plane.diagnosis import HEARTBEAT_TIMEOUT_SECONDS
from stratagem._src.control_plane.generation import Generation, Member, in_order, new_incarnation
from stratagem._src.control_plane.join import DEFAULT_TIMEOUT_SECONDS, WorkerName
from stratagem._src.control_plane.membership_server_process import MembershipServerProcess
from stratagem._src.control_plane.peers import Answer, PeerService
from stratagem._src.control_plane.quorum import GiveUp, Quorum, Resume
from stratagem._src.core.errors import UnavailableError
from stratagem._src.jax_compat import distributed_runtime as jax_runtime
from stratagem._src.mesh.backend_lifetime import end_backend_lifetime
from stratagem._src.mesh.backend_start import prepare_backend
from stratagem._src.mesh.devices import name_processes
from stratagem._src.mesh.persistent_cache import enable_persistent_cache
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials

__all__ = ["ElasticJob", "JobOverError", "LeftBehindError"]

_log = logging.getLogger("stratagem")
_POLL_SECONDS = 0.1
_ADMISSION_POLL_SECONDS = 0.25
_PAUSE_TOPIC, _PAUSE_WAIT = "admission", "the admission of joining workers"
_MAX_ATTEMPTS = 20


class LeftBehindError(UnavailableError):
    """The other workers have continued without this one."""


class JobOverError(UnavailableError):
    """The other workers have finished training."""


class ElasticJob:
    """The membership of this process in an elastic job.

    The job runs in generations. Each generation has its own membership server and its own JAX backend;
    when workers are lost or join, the members agree on the next generation (``Quorum``) and re-form.

    Args:
        resolver: The resolver of the cluster; it must know the addresses of all workers.
        timeout: Seconds that workers wait for each other; default 300.
        min_workers: The minimum number of workers to continue with.

    Attributes:
        is_waiting: Whether the job is already running and has not admitted this process yet.
        peers: The RPC service between the processes of the job.
        min_workers: The minimum number of workers to continue with.

    Raises:
        UnavailableError: If some workers do not start in time; the message names them.
        BackendStartedError: If the JAX backend is already initialized.
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
        self.peers: PeerService = PeerService(me, self._credentials, join.hosts_of(names))
        self._pause: CoordinatedStop | None = None
        self._host: MembershipServerProcess | None = None
        self._background = Background("the elastic job")
        self._closed = threading.Event()
        join.leave_at_exit()
        enable_persistent_cache()
        prepare_backend()
        generation = self._form_first_generation()
        if generation is None:
            self.is_waiting = True
            jax_runtime.start_single_process(self._local_device_ids, self._timeout + 1.0)
        else:
            self._form(generation)
        self._background.start(self._admit_joining, name="elastic-admission")

    @property
    def me(self) -> Member:
        """This process."""
        return self.peers.me

    @property
    def generation(self) -> Generation | None:
        """The current generation of this process."""
        return self.peers.generation

    # --- the first generation ---------------------------------------------------------------------------

    def _form_first_generation(self) -> Generation | None:
        """Returns the first generation, or ``None`` if the job is already running without this process."""
        deadline = time.monotonic() + self._timeout
        leads = self.planned[0] == WorkerName(self.me.job, self.me.index, self.me.address)
        while True:
            answers = self._send_join_requests(self._addresses)
            for answer in answers:
                generation = answer.generation
                if generation is not None:
                    is_in = generation.rank_of(self.me.incarnation) is not None
                    return generation if is_in else None
            # Only the planned first worker may decide on the first generation: two deciders could start
            # two jobs.
            if leads:
                present = [*self.peers.join_requests.pending(time.monotonic()), self.me]
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

    def _send_join_requests(self, addresses: list[str]) -> list[Answer]:
        member = asdict(self.me)
        others = [address for address in addresses if address != self.me.address]
        answers = [self.peers.call(address, "join", member=member) for address in others]
        return [answer for answer in answers if answer is not None]

    # --- the next ones ------------------------------------------------------------------------------------

    def check_pause(self, boundary: int) -> bool:
        """Records that the loop reached a boundary; returns whether all members re-form there.

        Raises:
            UnavailableError: If another member is gone, or does not answer in time.
        """
        assert self._pause is not None
        with self.peers.lock:
            self.peers.boundary = boundary
        return self._pause.reach_boundary()

    def next_generation(self) -> None:
        """Leaves the current generation and joins the next one.

        The JAX devices of the old generation are invalid when it returns.

        Raises:
            UnavailableError: If there is no quorum, or too few workers can continue.
            LeftBehindError: If the others have continued without this process.
        """
        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            # Read before leaving: the failure detector is closed by leave_cluster().
            suspects = self._suspects()
            join.leave_cluster()
            generation = self._wait_for_admission() if self.is_waiting else self._agree(suspects)
            jax_runtime.shut_down_backends()
            end_backend_lifetime()
            try:
                self._form(generation)
                return
            except Exception as error:  # also errors of JAX, if a worker is lost while all connect
                if self._host is not None and join.joined_cluster() is None:
                    self._host.release()
                if not attempts_left:
                    raise
                _log.warning("The workers re-form: %s", error)

    def _wait_for_admission(self) -> Generation:
        """Repeats the join request until this process is admitted; returns its generation."""
        heard = time.monotonic()
        addresses = list(self._addresses)
        while time.monotonic() - heard < self._timeout:
            answers = self._send_join_requests(addresses)
            for answer in answers:
                generation = answer.generation
                if generation is None:
                    continue
                heard = time.monotonic()
                if generation.rank_of(self.me.incarnation) is not None:
                    self.peers.adopt(generation)
                    self.is_waiting = False
                    return generation
                addresses += [m.address for m in generation.members if m.address not in addresses]
            if answers and all(answer.is_over for answer in answers):
                raise JobOverError(f"The job of {self.me} has finished without it.")
            time.sleep(_POLL_SECONDS)
        raise LeftBehindError(
            f"{self.me} requested to join the workers of its job, but they have ended, or do not respond "
            f"at {', '.join(addresses)}."
        )

    def _suspects(self) -> list[Member]:
        """Returns the members that have missed heartbeats for the whole heartbeat timeout."""
        joined, generation = join.joined_cluster(), self.generation
        if joined is None or generation is None:
            return []
        return [generation.members[rank] for rank in joined.watch.unresponsive_workers()]

    def _agree(self, suspects: list[Member]) -> Generation:
        """Returns the next generation, after the surviving members have agreed on it."""
        peers = self.peers
        while True:
            basis = self.generation
            assert basis is not None
            now = time.monotonic()
            # A new one each time: if a decision was adopted meanwhile, reports about the old generation
            # mean nothing.
            quorum = Quorum(
                basis, self.min_workers, HEARTBEAT_TIMEOUT_SECONDS, self._timeout, now=now
            )
            for member in suspects:
                quorum.suspect(member.incarnation)
            peers.set_quorum(quorum)
            try:
                agreed = self._agree_on(quorum)
            finally:
                peers.set_quorum(None)
            if agreed is not None:
                return agreed

    def _agree_on(self, quorum: Quorum) -> Generation | None:
        """Returns the generation after that of ``quorum``; ``None`` if another was adopted meanwhile."""
        peers, basis = self.peers, quorum.generation
        while True:
            now = time.monotonic()
            with peers.lock:
                if peers.generation is not basis:
                    return None
                quorum.ready(self.me.incarnation, now=now)
                leader = quorum.leader(now)
                joining = peers.join_requests.pending(now)
                decision = quorum.decide(now, joining)
            if isinstance(decision, GiveUp):
                raise UnavailableError(
                    f"{self.me} could not continue after workers were lost. It waited {self._timeout:g} s "
                    f"for {decision.text}. Restart all workers from a checkpoint."
                )
            if leader == self.me:
                if isinstance(decision, Resume):
                    return self._decide(basis.number + 1, decision.members)
                self._probe_missing(quorum)
            else:
                assert leader is not None  # at least this process is neither silent nor ended
                decided = self._report_to(leader, quorum)
                if decided is not None:
                    return decided
            time.sleep(_POLL_SECONDS)

    def _report_to(self, leader: Member, quorum: Quorum) -> Generation | None:
        """Reports to the leader that this process can continue; returns the next generation if decided."""
        basis = quorum.generation
        answer = self.peers.call(
            leader.address, "ready", by=self.me.incarnation, generation=basis.to_json()
        )
        # The address and the task outlive a process. If another incarnation answers, `worker 0 (host:0)`
        # has been restarted: the process that could decide is gone.
        if answer is None or answer["by"] != leader.incarnation:
            self._record_if_ended(leader, quorum)
            return None
        quorum.answered(leader.incarnation, now=time.monotonic())
        decided = answer.generation
        if answer.is_over:
            raise JobOverError(f"{leader} has finished training.")
        if answer.is_left:
            raise LeftBehindError(
                f"{self.me} missed heartbeats for some time, and the other workers of its job have "
                "continued without it."
            )
        if decided is None or decided.number <= basis.number:
            return None
        self.peers.adopt(decided)
        return decided

    def _probe_missing(self, quorum: Quorum) -> None:
        """Probes the members that have not reported that they can continue.

        A probe of an unreachable member blocks for seconds. Such members are probed only when no other
        member is outstanding: then only proof that they have ended can give the rest a quorum.
        """
        now = time.monotonic()
        missing = [
            member
            for member in quorum.generation.members
            if member != self.me
            and not quorum.has_ended(member)
            and not quorum.is_ready(member, now)
        ]
        awaited = [member for member in missing if not quorum.is_silent(member, now)]
        for member in awaited or missing:
            answer = self.peers.call(member.address, "ask")
            if answer is None or answer["by"] != member.incarnation:
                self._record_if_ended(member, quorum)
            elif self._is_elsewhere(answer, quorum.generation):
                raise LeftBehindError(
                    f"{self.me} missed heartbeats for some time, and {member} has continued with others."
                )
            else:
                quorum.answered(member.incarnation, now=time.monotonic())

    def _is_elsewhere(self, answer: Answer, basis: Generation) -> bool:
        theirs = answer.generation
        return (
            theirs is not None
            and theirs.number > basis.number
            and theirs.rank_of(self.me.incarnation) is None
        )

    def _record_if_ended(self, member: Member, quorum: Quorum) -> None:
        if self.peers.has_ended(member):
            quorum.ended(member.incarnation)

    # --- forming ------------------------------------------------------------------------------------------

    def _decide(self, number: int, members: tuple[Member, ...]) -> Generation:
        """Starts the membership server of the next generation, and adopts the generation."""
        server_address, self._host = "", None
        if len(members) > 1:
            # Port 0: each generation has a new server at a new port, which a worker that still belongs to
            # the previous generation cannot reach by mistake.
            where = Address(Address.parse(self.me.address).host, 0)
            self._host = MembershipServerProcess(
                where, len(members), self._credentials, join.hosts_of(self.planned)
            )
            server_address = str(self._host.address)
        generation = Generation(number, self.me.incarnation, members, server_address)
        self.peers.adopt(generation)
        return generation

    def _form(self, generation: Generation) -> None:
        peers = self.peers
        if peers.generation is not generation:
            peers.adopt(generation)
        rank = generation.rank_of(self.me.incarnation)
        assert rank is not None
        names = tuple(WorkerName(m.job, m.index, m.address) for m in generation.members)
        host = self._host if generation.decided_by == self.me.incarnation else None
        if len(names) == 1:
            jax_runtime.start_single_process(self._local_device_ids, self._timeout + 1.0)
            name_processes([(names[0].job, names[0].index)])
        else:
            join.rendezvous(
                names,
                rank,
                Address.parse(generation.server),
                self._credentials,
                host,
                self._timeout,
                local_device_ids=self._local_device_ids,
                server_rank=generation.rank_of(generation.decided_by) or 0,
                find_ended=lambda number: peers.has_ended(generation.members[number]),
            )
        joined = join.joined_cluster()
        self._pause = CoordinatedStop(
            LocalBroadcast() if joined is None else ClusterBroadcast(joined.watch, _PAUSE_WAIT),
            _PAUSE_TOPIC,
        )
        _log.info(
            "Generation %d of the workers: %s.", generation.number, ", ".join(map(str, names))
        )

    # --- admission of joining workers ---------------------------------------------------------------------

    def _admit_joining(self) -> None:
        """Makes all members pause at the same boundary when a worker requests to join.

        Only the first member does this, once in each generation.
        """
        requested: CoordinatedStop | None = None
        while not self._closed.wait(_ADMISSION_POLL_SECONDS):
            peers, pause = self.peers, self._pause
            with peers.lock:
                generation = peers.generation
                is_first = generation is not None and generation.members[0] == self.me
                is_asked = is_first and bool(peers.join_requests.pending(time.monotonic()))
                is_training = peers.boundary > 0 and not peers.is_over
            if is_asked and is_training and pause is not None and pause is not requested:
                # The generation may have ended: then no worker hears this. The next one has its own pause.
                pause.request("workers request to join")
                requested = pause

    def finish(self) -> None:
        """Ends the training: no further workers are admitted."""
        self.peers.is_over = True
        self._closed.set()
