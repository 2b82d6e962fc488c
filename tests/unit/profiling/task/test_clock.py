"""How clocks are compared."""

import random
import subprocess
import sys
import time

from stratagem._src.process.host_identity import boot_id
from stratagem._src.profiling.task.clock import (
    ClockOffset,
    ClockSample,
    now_ns,
    offset_from_barriers,
    offset_from_round_trips,
)


def test_the_truth_is_as_near_as_the_quickest_answer_says():
    random.seed(0)
    for ahead in (-5_000_000, 0, 7_123_456):
        questions = []
        for number in range(20):
            asked = number * 10_000_000
            there, back = random.randrange(1, 200_000), random.randrange(1, 200_000)
            questions.append(ClockSample(asked, asked + there + ahead, asked + there + back))
        found = offset_from_round_trips(questions)
        assert abs(found.ahead_ns - ahead) <= found.within_ns + 1
        assert found.within_ns == min(q.answered_ns - q.asked_ns for q in questions) // 2


def test_moments_that_were_noted_together_show_the_difference():
    assert offset_from_barriers([100, 200, 300], [100, 200, 300]) == ClockOffset(0, 0)
    # One of them was noted late.
    assert offset_from_barriers([1100, 1200, 9300], [100, 200, 300]) == ClockOffset(1000, 4000)


def test_processes_of_a_machine_know_that_they_share_its_clock():
    program = "from stratagem._src.process.host_identity import boot_id; print(boot_id())"
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert said.strip() == boot_id() != ""


def test_the_clock_counts_from_1970():
    assert abs(now_ns() / 1e9 - time.time()) < 60
