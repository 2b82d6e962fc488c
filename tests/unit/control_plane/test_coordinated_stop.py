"""Workers that halt at the same pass of their loops, whenever one of them asks for it."""

import queue
import random
import threading
import time

import pytest

from stratagem._src.control_plane.coordinated_stop import CoordinatedStop, LocalBroadcast
from stratagem._src.control_plane.membership_client import Broadcast
from stratagem._src.control_plane.membership_state import MembershipState
from stratagem._src.control_plane.run_length import run_length_decode

NUM_STEPS = 200


class Meeting:
    """A board whose messages reach every worker in a thread of its own, as over the network."""

    def __init__(self, num_workers):
        self._state = MembershipState(num_workers)
        for worker in range(num_workers):
            self._state.join(worker, 0.0)
        self._lock = threading.Lock()
        self.lines = [Line(self, worker) for worker in range(num_workers)]

    def say(self, worker, message):
        with self._lock:
            sends = self._state.receive(worker, message, 0.0)
            for send in sends:
                self.lines[send.worker].inbox.put(send.message)


class Line:
    def __init__(self, meeting, worker):
        self._meeting, self._worker = meeting, worker
        self.inbox, self._listeners, self._answers = queue.SimpleQueue(), [], {}
        self._news = threading.Condition()

    def broadcast(self, topic, why):
        self._meeting.say(self._worker, {"call": topic, "why": why})

    def add_listener(self, listener):
        self._listeners.append(listener)

    def answer(self, key, value):
        self._meeting.say(self._worker, {"put": key, "value": value})

    def take_answers(self, key):
        with self._news:
            assert self._news.wait_for(lambda: key in self._answers, 30)
            return self._answers[key]

    def hear(self):
        while (message := self.inbox.get()) is not None:
            if "called" in message:
                for listener in self._listeners:
                    listener(Broadcast(message["called"], message["by"], message["why"]))
            else:
                with self._news:
                    self._answers[message["exchanged"]] = run_length_decode(message["runs"])
                    self._news.notify_all()


def halts_of(num_workers, calls, in_step):
    """Runs loops; returns the passes at which each worker halted."""
    meeting = Meeting(num_workers)
    boundaries = [CoordinatedStop(line, "end") for line in meeting.lines]
    collective = threading.Barrier(num_workers)
    halts = [[] for _ in range(num_workers)]

    def loop(worker):
        for step in range(NUM_STEPS):
            for caller, at in calls:
                if (worker, step) == (caller, at):
                    boundaries[worker].request("notice")
            if boundaries[worker].reach_boundary():
                halts[worker].append(step)
            if in_step:
                collective.wait(30)
            # Long enough for what was called to be heard before the last pass.
            time.sleep(0.001)

    hearing = [threading.Thread(target=x.hear) for x in meeting.lines]
    loops = [threading.Thread(target=loop, args=(worker,)) for worker in range(num_workers)]
    for thread in [*hearing, *loops]:
        thread.start()
    for thread in loops:
        thread.join(60)
    for line in meeting.lines:
        line.inbox.put(None)
    for thread in hearing:
        thread.join()
    return halts


@pytest.mark.parametrize("seed", range(12))
def test_all_halt_at_the_same_pass(seed):
    rng = random.Random(seed)
    num_workers = rng.choice([2, 3, 5])
    calls = [
        (rng.randrange(num_workers), rng.randrange(50)) for _ in range(rng.choice([1, 1, 2, 4]))
    ]
    halts = halts_of(num_workers, calls, in_step=bool(seed % 2))
    assert all(those == halts[0] for those in halts)
    assert 1 <= len(halts[0]) <= len(calls)
    assert halts[0][0] >= min(at for _, at in calls)


def test_a_call_for_the_next_halt_reaches_a_worker_that_has_not_halted_yet():
    meeting = Meeting(2)
    quick, slow = (CoordinatedStop(line, "end") for line in meeting.lines)

    def deliver():
        for line in meeting.lines:
            line.inbox.put(None)
            line.hear()

    quick.request("first")
    deliver()
    deliver()
    assert quick.reach_boundary()
    quick.request("second")
    deliver()
    deliver()
    assert slow.reach_boundary()
    deliver()
    assert [quick.reach_boundary(), slow.reach_boundary()] == [True, True]
    assert [quick.reach_boundary(), slow.reach_boundary()] == [False, False]


def test_a_loop_alone_halts_at_the_next_pass_and_only_there():
    boundary = CoordinatedStop(LocalBroadcast(), "end")
    assert [boundary.reach_boundary() for _ in range(3)] == [False] * 3
    boundary.request("first")
    boundary.request("again, before it was heeded")
    assert [boundary.reach_boundary() for _ in range(3)] == [True, False, False]
    boundary.request("another")
    boundary.close()
    assert [boundary.reach_boundary() for _ in range(2)] == [True, False]
