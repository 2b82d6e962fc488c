"""Processes of several devices that share memory."""

import itertools
import threading
import time

import numpy as np
import pytest
from sharing_threads import Processes, at_once, random_arrays, share_of

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.device_rendezvous import DeviceRendezvous

LARGE = 40_000
SUM, MAX = CollectiveOp.SUM, CollectiveOp.MAX
GATHER, SCATTER = CollectiveOp.GATHER, CollectiveOp.SCATTER


class Devices:
    """The devices of some processes."""

    def __init__(self, num_processes, num_devices):
        self.processes = Processes(num_processes)
        self.meetings = [DeviceRendezvous(exchange) for exchange in self.processes.exchanges]
        self.num_devices = num_devices
        self.places = list(itertools.product(range(num_processes), range(num_devices)))

    def call(self, place, combination, arrays):
        """Returns what a device got, and what went wrong."""
        process, device = place
        share = share_of(combination, arrays, len(self.places))
        meeting = self.meetings[process]
        problem = meeting.participate(combination, device, self.num_devices, share)
        return share.results, problem

    def each(self, work):
        """Returns what ``work(number)`` returns for the number of every device."""
        return at_once([lambda n=n: work(n) for n in range(len(self.places))])


@pytest.fixture
def devices():
    made = []

    def make(num_processes, num_devices):
        made.append(Devices(num_processes, num_devices))
        return made[-1]

    yield make
    for each in made:
        each.processes.close()


@pytest.mark.parametrize("layout", [(2, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("sizes", [[1], [3, 0, 5], [7, LARGE, LARGE + 1]])
def test_sums_have_the_same_bits_on_all_devices_and_are_added_in_order(devices, layout, sizes):
    some = devices(*layout)

    def work(number):
        return some.call(some.places[number], SUM, random_arrays(number, sizes, np.float32))

    brought = [random_arrays(number, sizes, np.float32) for number in range(len(some.places))]
    results = some.each(work)
    for position in range(len(sizes)):
        of_processes = [
            sum(of_device[position] for of_device in brought[first : first + layout[1]])
            for first in range(0, len(brought), layout[1])
        ]
        expected = sum(of_processes[1:], of_processes[0])
        for found, problem in results:
            assert problem is None
            assert found[position].tobytes() == expected.tobytes()


def test_what_is_gathered_is_in_the_order_of_the_devices(devices):
    some = devices(2, 3)
    sizes = [2, LARGE]

    def work(number):
        return some.call(some.places[number], GATHER, random_arrays(number, sizes, np.int32))

    brought = [random_arrays(number, sizes, np.int32) for number in range(6)]
    for found, problem in some.each(work):
        assert problem is None
        for position in range(len(sizes)):
            expected = np.concatenate([of_device[position] for of_device in brought])
            np.testing.assert_array_equal(found[position], expected)


@pytest.mark.parametrize("layout", [(2, 2), (2, 3)])
def test_each_device_gets_its_part_of_the_same_sum(devices, layout):
    some = devices(*layout)
    count = len(some.places)
    sizes = [count, 7_000 * count]

    def work(number):
        arrays = random_arrays(number, sizes, np.float32)
        summed, problem = some.call(some.places[number], SUM, arrays)
        assert problem is None
        parts, problem = some.call(some.places[number], SCATTER, arrays)
        assert problem is None
        return summed, parts

    for number, (summed, parts) in enumerate(some.each(work)):
        for whole, part in zip(summed, parts, strict=True):
            assert part.tobytes() == np.split(whole, count)[number].tobytes()


def test_many_turns_in_which_each_device_is_late_once(devices):
    some = devices(2, 2)

    def work(number):
        found = []
        for turn in range(12):
            if turn % 4 == number:
                time.sleep(0.002)
            array = np.full(1 + turn * 5_000, number + turn, np.int64)
            [result], problem = some.call(some.places[number], (SUM, MAX)[turn % 2], [array])
            assert problem is None
            found.append(result)
        return found

    for found in some.each(work):
        for turn, result in enumerate(found):
            assert result.size == 1 + turn * 5_000
            np.testing.assert_array_equal(result, 3 + turn if turn % 2 else 6 + 4 * turn)


def test_a_device_that_waits_for_another_of_its_process_is_let_go(devices):
    some = devices(2, 2)
    array = np.zeros(3, np.float32)
    timer = threading.Timer(0.05, some.processes.exchanges[0].abort)
    timer.start()
    _, problem = some.call((0, 0), SUM, [array])
    assert "aborted" in problem
    _, problem = some.call((0, 1), SUM, [array])
    assert "aborted" in problem
    timer.join()


def test_all_devices_are_told_that_the_other_process_is_given_up(devices):
    some = devices(2, 2)
    array = np.zeros(3, np.float32)
    timer = threading.Timer(0.05, some.processes.exchanges[0].abort)
    timer.start()
    problems = at_once([lambda d=d: some.call((0, d), SUM, [array])[1] for d in range(2)])
    assert all("aborted" in problem for problem in problems)
    timer.join()


@pytest.mark.parametrize("odd", [(SUM, 4), (MAX, 3)])
def test_devices_that_bring_different_arrays_are_refused(devices, odd):
    some = devices(2, 2)

    def work(number):
        combination, size = odd if number == 1 else (SUM, 3)
        return some.call(some.places[number], combination, [np.zeros(size, np.float32)])[1]

    def give_up():
        time.sleep(0.5)
        some.processes.exchanges[1].abort()

    *problems, _ = at_once([*(lambda n=n: work(n) for n in range(4)), give_up])
    assert any("different arrays" in problem for problem in problems[:2])
    assert all(problem is not None for problem in problems)


def test_a_device_that_comes_twice_is_refused(devices):
    some = devices(2, 2)
    array = np.zeros(3, np.float32)
    problems = at_once([lambda: some.call((0, 0), SUM, [array])[1]] * 2)
    assert any("different arrays" in problem for problem in problems)
    assert all(problem is not None for problem in problems)


def test_exchanges_that_overlap_are_refused(devices):
    some = devices(2, 1)
    array = np.zeros(3, np.float32)
    problems = at_once([lambda: some.call((0, 0), SUM, [array])[1]] * 2)
    assert sum("at the same time" in problem for problem in problems) == 1
    assert sum("aborted" in problem for problem in problems) == 1


def test_an_error_in_the_exchange_reaches_all_devices(devices):
    some = devices(2, 2)
    some.meetings[0].backend.run = None
    array = np.zeros(3, np.float32)
    problems = at_once([lambda d=d: some.call((0, d), SUM, [array])[1] for d in range(2)])
    assert all("TypeError" in problem for problem in problems)
    assert some.meetings[0].backend.is_aborted
