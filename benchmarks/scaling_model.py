"""How long a step takes with many workers: pure arithmetic, fitted to measured steps.

A step of data-parallel training is the slowest worker's computation and then an all-reduce of the
gradients, unless input comes slower than that. Beside it the meeting point takes some time of the leader.
Nothing overlaps: gradients of a compiled step are reduced when all of them are there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Link(NamedTuple):
    """What connects a worker to the next.

    Attributes:
        latency: Seconds until the next one has a message, however small.
        bandwidth: Bytes a second, in one direction.
    """

    latency: float
    bandwidth: float


def ring_seconds(num_workers: int, num_bytes: float, link: Link) -> float:
    """Returns seconds of an all-reduce by a ring: each sends its part on 2 (n - 1) times.

    >>> ring_seconds(2, 1e9, Link(0.0, 1e9))
    1.0
    """
    hops = 2 * (num_workers - 1)
    return hops * (link.latency + num_bytes / num_workers / link.bandwidth)


def tree_seconds(num_workers: int, num_bytes: float, link: Link) -> float:
    """Returns seconds of an all-reduce by two trees: up and down, each link with half of it both ways.

    >>> tree_seconds(4, 0, Link(1.0, 1e9))
    4.0
    """
    if num_workers == 1:
        return 0.0
    return 2 * math.ceil(math.log2(num_workers)) * link.latency + 2 * num_bytes / link.bandwidth


@dataclass(frozen=True)
class Hardware:
    """Machines of equal workers.

    Attributes:
        name: What it is called in tables.
        per_machine: How many workers share a machine.
        inside: What connects them there.
        between: What connects each of them to one of the next machine.
        cores: How many cores of the leader's machine the meeting point may take time from.
    """

    name: str
    per_machine: int
    inside: Link
    between: Link
    cores: int

    def all_reduce_seconds(self, num_workers: int, num_bytes: float) -> float:
        """Returns seconds of an all-reduce.

        Inside a machine each worker reduces its part, which it then reduces with those that have the
        same part on other machines, by a ring or by trees, whichever is faster; then parts are gathered.
        """
        inside = min(num_workers, self.per_machine)
        machines = math.ceil(num_workers / self.per_machine)
        seconds = ring_seconds(inside, num_bytes, self.inside)
        if machines > 1:
            part = machines, num_bytes / inside, self.between
            seconds += min(ring_seconds(*part), tree_seconds(*part))
        return seconds


@dataclass(frozen=True)
class Work:
    """What each worker does in a step.

    Attributes:
        name: What it is called in tables.
        seconds: How long it computes, alone.
        num_bytes: How large its gradients are.
        spread: The standard deviation of ``seconds`` from step to step, as a part of it.
        input_seconds: How long its input for a step takes, beside the computation.
    """

    name: str
    seconds: float
    num_bytes: float
    spread: float = 0.0
    input_seconds: float = 0.0


@dataclass(frozen=True)
class ControlPlane:
    """What it costs that the workers know of each other.

    Attributes:
        seconds_per_worker: Of an agreement of all workers on input, for each of them.
        steps_at_once: On how many steps they agree at once.
        cores_per_worker: The part of a core that the meeting point takes for each worker.
    """

    seconds_per_worker: float = 0.0
    steps_at_once: int = 8
    cores_per_worker: float = 0.0


class StepTime(NamedTuple):
    """Where the time of a step goes, in seconds."""

    compute: float
    stragglers: float
    all_reduce: float
    input: float
    membership: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(self)


def expected_maximum(num: int) -> float:
    """Returns how many standard deviations the largest of so many normal values is above their mean.

    By Blom's approximation of normal order statistics: Statistical Estimates and Transformed
    Beta-Variables, 1958.

    >>> [round(expected_maximum(num), 2) for num in (1, 2, 1024)]
    [0.0, 0.59, 3.23]
    """
    return statistics.NormalDist().inv_cdf((num - 0.375) / (num + 0.25))


def step_time(work: Work, hardware: Hardware, control: ControlPlane, num_workers: int) -> StepTime:
    """Returns where the time of a step goes with so many workers."""
    stragglers = work.spread * work.seconds * expected_maximum(num_workers)
    all_reduce = hardware.all_reduce_seconds(num_workers, work.num_bytes)
    # The leader has the less of its machine the more the meeting point takes; all wait for it.
    taken = control.cores_per_worker * num_workers / hardware.cores if num_workers > 1 else 0.0
    membership = work.seconds * taken
    busy = work.seconds + stragglers + all_reduce + membership
    agreement = control.seconds_per_worker * num_workers / control.steps_at_once
    awaited = max(work.input_seconds, agreement if num_workers > 1 else 0.0)
    return StepTime(work.seconds, stragglers, all_reduce, max(0.0, awaited - busy), membership)


def efficiency(work: Work, hardware: Hardware, control: ControlPlane, num_workers: int) -> float:
    """Returns how fast so many workers are together, as a part of so many times one."""
    alone = step_time(work, hardware, control, 1).total
    return alone / step_time(work, hardware, control, num_workers).total


class Point(NamedTuple):
    """A step that was measured on one machine whose cores all processes share.

    Attributes:
        num_processes: How many there were.
        num_bytes: How large the gradients are.
        alone: Seconds of the step's computation in one process alone.
        cores: How many cores that took.
        seconds: Seconds of the step.
    """

    num_processes: int
    num_bytes: float
    alone: float
    cores: float
    seconds: float


@dataclass(frozen=True)
class SharedMachine:
    """What processes on one machine cost each other, fitted to measured steps.

    Attributes:
        cores: How many the machine has.
        start: Seconds that each step of several processes takes more than one alone.
        latency: Seconds of each message of a ring.
        turn: Seconds that a message waits for each other process that has the core of its receiver
            before that.
        bandwidth: Bytes a second that all messages of all processes get through together: the memory and
            the cores are common.
    """

    cores: int
    start: float = 0.0
    latency: float = 0.0
    turn: float = 0.0
    bandwidth: float = math.inf

    def step_seconds(
        self, num_processes: int, num_bytes: float, alone: float, cores: float
    ) -> float:
        """Returns how long a step should take."""
        computed = self.computation_seconds(num_processes, alone, cores)
        per_unit = self.start, self.latency, self.turn, 1 / self.bandwidth
        return computed + float(np.dot(per_unit, self.units(num_processes, num_bytes)))

    def units(self, num_processes: int, num_bytes: float) -> tuple[float, float, float, float]:
        """Returns how many starts, messages, waits for a turn and bytes a step has."""
        if num_processes == 1:
            return 0.0, 0.0, 0.0, 0.0
        messages = 2 * (num_processes - 1)
        # A ring is as slow as the slowest: of three processes on two cores, two share one.
        others = math.ceil(num_processes / self.cores) - 1
        return 1.0, messages, messages * others, messages * num_bytes

    def computation_seconds(self, num_processes: int, alone: float, cores: float) -> float:
        """Returns how long the computation should take where all want the same cores.

        >>> SharedMachine(cores=2).computation_seconds(4, alone=1.0, cores=1.5)
        3.0
        """
        return alone * max(1.0, num_processes * cores / self.cores)


def fit(points: Sequence[Point], cores: int) -> SharedMachine:
    """Returns the machine that explains measured steps best, by the squares of relative errors."""
    bare = SharedMachine(cores)
    rows, rest = [], []
    for point in points:
        computed = bare.computation_seconds(point.num_processes, point.alone, point.cores)
        units = bare.units(point.num_processes, point.num_bytes)
        rows.append([count / point.seconds for count in units])
        rest.append((point.seconds - computed) / point.seconds)
    start, latency, turn, per_byte = _least_squares(np.array(rows), np.array(rest))
    bandwidth = 1 / per_byte if per_byte > 0 else math.inf
    return SharedMachine(cores, start, latency, turn, bandwidth)


def _least_squares(rows: np.ndarray, rest: np.ndarray) -> list[float]:
    """Returns the best factors none of which is negative: what would be is left out."""
    kept = list(range(rows.shape[1]))
    while kept:
        found = np.linalg.lstsq(rows[:, kept], rest, rcond=None)[0]
        if (found >= 0).all():
            break
        del kept[int(np.argmin(found))]
    factors = [0.0] * rows.shape[1]
    for index, factor in zip(kept, found if kept else [], strict=True):
        factors[index] = float(factor)
    return factors


def relative_errors(machine: SharedMachine, points: Sequence[Point]) -> list[float]:
    """Returns by what part each measured step is mistaken; more than nothing if it is faster."""
    return [
        machine.step_seconds(p.num_processes, p.num_bytes, p.alone, p.cores) / p.seconds - 1
        for p in points
    ]
