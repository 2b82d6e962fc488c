"""Workers agree on steps that they have read. Each worker is a thread here; the board is the real one."""

from __future__ import annotations

import threading
import time

import numpy as np

from stratagem._src.control_plane.membership_state import MembershipState
from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.input.agreement import Agreement, agreed_steps
from stratagem._src.input.pairing import StartedIteration
from stratagem._src.input.worker_input import HostStep
from stratagem._src.mesh.process_monitor import Comparison
from stratagem._src.process.background import Background

DEADLINE_SECONDS = 20.0


class Meeting:
    """Takes the place of the process in which the workers meet."""

    def __init__(self, num_workers):
        self.board = MembershipState(num_workers)
        for worker in range(num_workers):
            self.board.join(worker, 0.0)
        self.changed = threading.Condition()
        self.complete = {}
        self.num_comparisons = 0

    def put(self, worker, key, said, entries):
        with self.changed:
            part = {"put": key, "value": said, "entries": entries}
            sends = self.board.receive(worker, part, 0.0)
            if sends:
                message = sends[0].message
                self.complete[key] = Comparison(message["said"], message["common"])
                self.num_comparisons += 1
                self.changed.notify_all()


class WorkerWatch:
    def __init__(self, meeting, worker):
        self.meeting = meeting
        self.worker = worker

    def compare(self, topic, turn, said, entries, what, cancelled):
        key = f"{topic}/{turn}"
        self.meeting.put(self.worker, key, said, entries)
        with self.meeting.changed:
            assert self.meeting.changed.wait_for(
                lambda: key in self.meeting.complete, DEADLINE_SECONDS
            )
        return self.meeting.complete[key]

    def contribute(self, topic, turn, said):
        self.meeting.put(self.worker, f"{topic}/{turn}", said, [])


def run(meeting, functions):
    """Returns what each worker's function gives, in a thread of its own."""
    results = [None] * len(functions)

    def work(worker):
        results[worker] = functions[worker](worker, WorkerWatch(meeting, worker))

    background = Background("workers of a test")
    for worker in range(len(functions)):
        background.start(work, worker, name=f"worker-{worker}")
    background.join_or_abandon(DEADLINE_SECONDS)
    background.check()
    return results


def rows(size):
    return np.zeros((size, 2), np.float32)


def steps_of(sizes, *, error=None, global_rows=None):
    for number, size in enumerate(sizes):
        batch = np.float32(number) if size is None else rows(size)
        of = None if global_rows is None else global_rows[number]
        yield HostStep([batch], None, number + 1, global_rows=of)
    if error is not None:
        raise error


def agree(make_steps, *, when_read=None):
    """Returns a worker's function: its steps as pairs of size and whether they are uneven."""

    def function(worker, watch):
        iteration = StartedIteration("input 0/0", "iteration 0", lambda: None, watch)
        agreement = Agreement(iteration, worker, threading.Event())
        given = []
        try:
            for step in agreed_steps(agreement, make_steps(), 1, None, 0):
                shape = np.shape(step.replica_batches[0])
                given.append((shape[0] if shape else None, step.uneven))
                if when_read is not None:
                    when_read()
        except ReplicaMismatchError as failure:
            given.append(str(failure))
        except OSError as failure:
            agreement.report_failure(failure)
            given.append("failed")
        return given

    return function


class CountedSteps:
    """Steps of one size; ``wait`` returns when the next eight of them have been read."""

    def __init__(self, count):
        self._count = count
        self._num_read = self._num_taken = 0
        self._changed = threading.Condition()
        self.most_ahead = 0

    def __call__(self):
        for step in steps_of([4] * self._count):
            with self._changed:
                self._num_read += 1
                self.most_ahead = max(self.most_ahead, self._num_read - self._num_taken)
                self._changed.notify_all()
            yield step

    def take(self):
        with self._changed:
            self._num_taken += 1

    def wait(self):
        self.take()
        with self._changed:
            wanted = min(self._num_taken + 8, self._count)
            assert self._changed.wait_for(lambda: self._num_read >= wanted, DEADLINE_SECONDS)


def test_steps_that_are_alike_are_agreed_on_together():
    meeting = Meeting(3)
    workers = [CountedSteps(100) for _ in range(3)]
    given = run(meeting, [agree(steps, when_read=steps.wait) for steps in workers])
    assert given == [[(4, False)] * 100] * 3
    assert meeting.num_comparisons < 30


def test_who_reads_faster_than_another_worker_does_not_read_without_end():
    quick = CountedSteps(100)

    def slow():
        for step in steps_of([4] * 100):
            time.sleep(0.002)
            yield step

    given = run(Meeting(2), [agree(quick, when_read=quick.take), agree(slow)])
    assert given == [[(4, False)] * 100] * 2
    # Those that are compared, those read ahead of them, one that was just read, and one just taken.
    assert quick.most_ahead <= 8 + 8 + 1 + 1


def test_steps_that_differ_are_marked_and_only_they():
    sizes = [[4, 4, 4, 4, 4], [4, 4, 3, 4, 4]]
    given = run(Meeting(2), [agree(lambda mine=mine: steps_of(mine)) for mine in sizes])
    for worker, mine in enumerate(sizes):
        assert given[worker] == [(size, number == 2) for number, size in enumerate(mine)]


def test_a_worker_at_its_end_goes_on_with_empty_batches():
    given = run(Meeting(2), [agree(lambda n=n: steps_of([4] * n)) for n in (2, 4)])
    assert given[0] == [(4, False)] * 2 + [(0, True)] * 2
    assert given[1] == [(4, False)] * 2 + [(4, True)] * 2


def test_elements_that_are_not_batches_end_with_the_first_worker():
    given = run(Meeting(2), [agree(lambda n=n: steps_of([None] * n)) for n in (2, 4)])
    assert given == [[(None, False)] * 2] * 2


def test_steps_before_a_failure_are_given_and_the_failure_is_told():
    broken = agree(lambda: steps_of([4, 4, 4], error=OSError("no such file")))
    given = run(Meeting(2), [agree(lambda: steps_of([4] * 9)), broken])
    assert given[1] == [(4, False)] * 3 + ["failed"]
    assert given[0][:3] == [(4, False)] * 3
    assert len(given[0]) == 4
    assert "Cannot run step 3 of iteration 0" in given[0][3]
    assert "process 1: OSError('no such file')" in given[0][3]


def test_shares_of_one_size_of_global_batches_of_different_sizes_are_refused():
    shared = [
        agree(lambda of=of: steps_of([4] * 3, global_rows=of)) for of in ([8, 8, 8], [8, 8, 7])
    ]
    for given in run(Meeting(2), shared):
        assert given[:2] == [(4, False)] * 2
        assert "At step 2 of iteration 0" in given[2]
        assert "process 0 has a global batch of rows: 8; process 1 has a global" in given[2]


def test_the_end_of_global_batches_comes_for_all_workers_at_once():
    shared = [agree(lambda n=n: steps_of([4] * n, global_rows=[8] * n)) for n in (2, 3)]
    for given in run(Meeting(2), shared):
        assert given[:2] == [(4, False)] * 2
        assert "process 0 has no further batch; process 1 has a global batch of rows: 8" in given[2]


def test_shares_of_one_global_batch_need_not_be_of_one_size():
    shared = [agree(lambda n=n: steps_of([n, 4], global_rows=[7, 8])) for n in (3, 4)]
    given = run(Meeting(2), shared)
    assert given == [[(3, True), (4, False)], [(4, True), (4, False)]]
