"""The control plane under load: what workers meet at, launchers join, and coordinators reach.

The servers are the real ones, each in a process of its own, and so are the connections to them, on
loopback. Whoever connects is simulated by scaling_fleet.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

import psutil
from scaling_fleet import SECONDS, Fleet, Fleets, Role

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.control_plane.identities import MEMBERSHIP_SERVER, WORKER_ROLE
from stratagem._src.control_plane.membership_server_process import MembershipServerProcess
from stratagem._src.control_plane.worker_status import WAITING, WorkerStatus, views_from_json
from stratagem._src.launcher.cluster_plan import NodeOffer
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.event_serialization import report_to_json
from stratagem._src.launcher.events import NodeJoined
from stratagem._src.launcher.job_dispatcher import JobDispatcher
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.job_state import JobState
from stratagem._src.launcher.rendezvous import HEARTBEAT_SECONDS, HOST, NODE_ROLE, Rendezvous
from stratagem._src.launcher.rendezvous_server import RendezvousServer
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.parameter_server.coordinator.dispatcher import Dispatcher
from stratagem._src.parameter_server.protocol.serialization import pack
from stratagem._src.parameter_server.worker.worker_service import WorkerService
from stratagem._src.transport import Credentials, Identity, TransportServer

NUM_PROCESSES = 3
SECONDS_AT_REST = 4.0
NUM_AGREEMENTS = 5
STEPS_AT_ONCE = 8
LOST = 1


class Load(NamedTuple):
    """What a server had to do, and what that took.

    Attributes:
        server: Which one.
        num_tasks: How many tasks it served.
        start_seconds: From the first connection until all tasks were told that all are there.
        loss_seconds: From the end of one task's connection until all others knew.
        agreement_seconds: From the first part of a comparison to the last answer; ``None`` without one.
        cores_at_rest: What part of a core it took while nothing happened but signs of life.
        cpu_seconds: How long it computed for the start.
        megabytes: Its memory.
        num_threads: Its threads.
    """

    server: str
    num_tasks: int
    start_seconds: float
    loss_seconds: float
    agreement_seconds: float | None
    cores_at_rest: float
    cpu_seconds: float
    megabytes: float
    num_threads: int


class Observed:
    """The process of a server, as the system sees it."""

    def __init__(self, process: int) -> None:
        self._process = psutil.Process(process)
        self.begun = self.cpu_seconds

    @property
    def cpu_seconds(self) -> float:
        """How long it has computed."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def at_rest(self, wait: Callable[[], object]) -> float:
        """Returns what part of a core it takes while ``wait`` waits."""
        begun, computed = time.monotonic(), self.cpu_seconds
        wait()
        return (self.cpu_seconds - computed) / (time.monotonic() - begun)

    def size(self) -> tuple[float, int]:
        """Returns its megabytes and its threads."""
        return self._process.memory_info().rss / 2**20, self._process.num_threads()


def meeting_point(num_workers: int) -> Load:
    """Returns what it takes the meeting point to serve so many workers."""
    credentials = new_credentials()
    with ReservedPorts(1) as ports:
        address = Address("127.0.0.1", next(iter(ports)))
        status = WorkerStatus(WAITING, 1000, "train_step()").to_json()
        opening = {"num_workers": num_workers}
        role = Role(
            address, credentials, MEMBERSHIP_SERVER, WORKER_ROLE, opening, {"status": status}
        )
        with Fleets(_work, role, range(num_workers), NUM_PROCESSES) as fleets:
            fleets.answers()
            host = MembershipServerProcess(address, num_workers, credentials)
            seen = Observed(host.process.pid)
            start_seconds = latest(fleets.ask("join"))
            cpu_seconds = seen.cpu_seconds - seen.begun
            at_rest = seen.at_rest(lambda: fleets.ask("rest"))
            agreements = [latest(fleets.ask(("agree", n))) for n in range(NUM_AGREEMENTS)]
            size = seen.size()
            loss_seconds = latest(fleets.ask("lose"))
            fleets.ask("leave")
            host.release()
            psutil.Process(host.process.pid).wait(SECONDS)
    agreement = sorted(agreements)[NUM_AGREEMENTS // 2]
    return Load(
        "membership server",
        num_workers,
        start_seconds,
        loss_seconds,
        agreement,
        at_rest,
        cpu_seconds,
        *size,
    )


def _work(pipe: Pipe, role: Role, members: Sequence[int]) -> None:
    """Some workers at the meeting point, as their fleet is told by its pipe."""

    def knows(message: dict[str, Any]) -> bool:
        return "peers" in message and views_from_json(message["peers"])[LOST].gone

    begun = yield_to(pipe)
    fleet = Fleet(role, members)
    pipe.send((begun, fleet.listen(lambda message: "start" in message)))
    while True:
        match pipe.recv():
            case "rest":
                pipe.send(fleet.listen_for(SECONDS_AT_REST))
            case ("agree", number):
                pipe.send(_agree(fleet, f"input/{number}"))
            case "lose":
                begun = fleet.lose(LOST)
                pipe.send((begun, fleet.listen(knows)))
            case "leave":
                fleet.say(lambda _: {"leave": "done"})
                fleet.close()
                pipe.send(None)
                return


def _agree(fleet: Fleet, key: str) -> tuple[float, float]:
    """Has workers compare some steps of input; returns when they began and when the last one knew."""
    begun = time.monotonic()
    entries = [[16, 32]] * STEPS_AT_ONCE
    fleet.say(lambda _: {"put": key, "value": "batches", "entries": entries})
    return begun, fleet.listen(lambda message: message.get("exchanged") == key)


def rendezvous(num_nodes: int) -> Load:
    """Returns what it takes node 0 of a job to serve the launchers of so many others."""
    credentials = new_credentials()
    with ReservedPorts(1) as ports:
        address = Address("127.0.0.1", next(iter(ports)))
        opening = {"num_nodes": num_nodes + 1}
        role = Role(address, credentials, HOST, NODE_ROLE, opening, {}, HEARTBEAT_SECONDS)
        with Fleets(_join_job, role, range(1, num_nodes + 1), NUM_PROCESSES) as fleets:
            fleets.answers()
            with in_process(_lead, address, num_nodes + 1, credentials) as leader:
                seen = Observed(leader)
                start_seconds = latest(fleets.ask("join"))
                cpu_seconds = seen.cpu_seconds - seen.begun
                at_rest = seen.at_rest(lambda: fleets.ask("rest"))
                size = seen.size()
                loss_seconds = latest(fleets.ask("lose"))
    return Load(
        "rendezvous", num_nodes, start_seconds, loss_seconds, None, at_rest, cpu_seconds, *size
    )


def _join_job(pipe: Pipe, role: Role, members: Sequence[int]) -> None:
    """Some launchers of other nodes, as their fleet is told by its pipe."""

    def offer(node: int) -> dict[str, Any]:
        ports = (20000 + node,)
        return report_to_json(
            NodeJoined(NodeOffer(node, "127.0.0.1", TaskCounts(workers=1), ports))
        )

    begun = yield_to(pipe)
    fleet = Fleet(role, members)
    fleet.listen(lambda message: "welcome" in message)
    fleet.say(offer)
    pipe.send((begun, fleet.listen(lambda message: message.get("kind") == "Start")))
    fleet.next_command(pipe)
    pipe.send(fleet.listen_for(SECONDS_AT_REST))
    fleet.next_command(pipe)
    begun = fleet.lose(LOST)
    pipe.send((begun, fleet.listen(lambda message: message.get("kind") == "Stop")))
    pipe.recv()


def _lead(pipe: Pipe, address: Address, num_nodes: int, credentials: Credentials) -> None:
    """Node 0 of a job, without tasks of its own."""
    place = Rendezvous(address, num_nodes, 0, SECONDS, credentials)
    host = JobDispatcher(JobState(num_nodes, JobRules()))
    with EventLoop() as loop, RendezvousServer(loop, place, host):
        host.report(NodeJoined(NodeOffer(0, "127.0.0.1", TaskCounts(workers=0), ())))
        pipe.send("ready")
        while True:
            loop.run_once()


def coordinator(num_workers: int) -> Load:
    """Returns what it takes a coordinator to keep so many workers busy with small functions."""
    credentials = new_credentials()
    with ReservedPorts(num_workers) as ports, contextlib.ExitStack() as stack:
        addresses = {index: f"127.0.0.1:{port}" for index, port in enumerate(ports)}
        processes = []
        for number in range(NUM_PROCESSES):
            # The one that is lost is alone in its process, which is killed.
            those = (
                [LOST]
                if number == 0
                else [i for i in addresses if i != LOST and i % (NUM_PROCESSES - 1) == number - 1]
            )
            part = {index: addresses[index] for index in those}
            processes.append(stack.enter_context(in_process(_serve, part, credentials)))
        ours, theirs = multiprocessing.Pipe()
        leader = stack.enter_context(in_process(_coordinate, theirs, addresses, credentials))
        theirs.close()
        seen = Observed(leader)
        start_seconds = answer(ours)
        cpu_seconds = seen.cpu_seconds - seen.begun
        at_rest = seen.at_rest(lambda: time.sleep(SECONDS_AT_REST))
        size = seen.size()
        begun = time.monotonic()
        os.kill(processes[0], signal.SIGKILL)
        loss_seconds = answer(ours) - begun
    return Load(
        "coordinator", num_workers, start_seconds, loss_seconds, None, at_rest, cpu_seconds, *size
    )


def _serve(pipe: Pipe, addresses: Mapping[int, str], credentials: Credentials) -> None:
    """Some workers of a parameter-server cluster: real ones, but many in a process."""
    for index, address in addresses.items():
        service = WorkerService("worker", index, credentials)
        task = Identity.of_task("worker", index)
        TransportServer(address, service.handlers, credentials, task).start()
    pipe.send("ready")
    pipe.recv()


def _coordinate(
    pipe: Pipe, report: Pipe, addresses: Mapping[int, str], credentials: Credentials
) -> None:
    """A coordinator that runs functions on all workers, and then waits for the loss of one."""
    dispatcher = Dispatcher(
        credentials,
        pack(None),
        owner="benchmark",
        replaces="",
        closures_per_worker=2,
        worker_timeout=10.0,
        patience=SECONDS,
    )
    pipe.send("ready")
    begun = time.monotonic()
    dispatcher.set_workers(addresses)
    wait_until(lambda: len(dispatcher.state.workers) == len(addresses))
    report.send(time.monotonic() - begun)
    wait_until(lambda: len(dispatcher.state.workers) < len(addresses))
    report.send(time.monotonic())
    pipe.recv()


def new_credentials() -> Credentials:
    """Returns what all tasks of a benchmark prove; servers find it in their environment."""
    secret = secrets.token_hex(16)
    os.environ["STRATAGEM_CLUSTER_SECRET"] = secret
    return Credentials(secret=secret)


def yield_to(pipe: Pipe) -> float:
    """Says that this process is there, and returns when the others are too."""
    pipe.send("ready")
    pipe.recv()
    return time.monotonic()


def latest(spans: Sequence[tuple[float | None, float]]) -> float:
    """Returns seconds from the first begin to the last end of what several processes did."""
    begun = min(begin for begin, _ in spans if begin is not None)
    return max(end for _, end in spans) - begun


def wait_until(is_so: Callable[[], bool]) -> None:
    """Waits, and gives up after a time."""
    deadline = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"not within {SECONDS:g} s")
        time.sleep(0.001)


def answer(pipe: Pipe) -> Any:
    """Returns what the other end of a pipe says."""
    if not pipe.poll(SECONDS):
        sys.exit(f"a process of the benchmark does not answer within {SECONDS:g} s")
    return pipe.recv()


@contextlib.contextmanager
def in_process(act: Callable[..., None], *arguments: Any) -> Iterator[int]:
    """Runs a function in a process; gives its number, once it says that it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=act, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        answer(ours)
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join(10)


SERVERS: dict[str, Callable[[int], Load]] = {
    "membership server": meeting_point,
    "rendezvous": rendezvous,
    "coordinator": coordinator,
}


def as_markdown(loads: Sequence[Load]) -> str:
    """Returns a table of what servers had to do, and what that took."""
    head = (
        "server",
        "tasks",
        "start",
        "failure detection",
        "agreement",
        "idle",
        "memory",
        "threads",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for load in loads:
        agreement = "-"
        if load.agreement_seconds is not None:
            agreement = f"{1e3 * load.agreement_seconds:.0f} ms"
        cells = (
            load.server,
            f"{load.num_tasks:,}",
            f"{load.start_seconds:.2f} s ({load.cpu_seconds:.2f} s CPU)",
            f"{1e3 * load.loss_seconds:.0f} ms",
            agreement,
            f"{100 * load.cores_at_rest:.0f} % of a core",
            f"{load.megabytes:.0f} MB",
            f"{load.num_threads:,}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
