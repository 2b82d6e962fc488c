"""Random numbers with a state: others in each draw, step and replica; the same again from a seed."""

import numpy as np
import pytest
from replicas import components

import stratagem as tf

pytestmark = pytest.mark.about("calls")


def test_each_draw_step_and_replica_has_its_own_numbers(strategy, execute):
    generator = tf.random.Generator.from_seed(1)

    def draw():
        return generator.uniform([3]), tf.random.uniform([3])

    def step():
        return strategy.run(draw), tf.random.uniform([3])

    def two_steps():
        tf.random.set_seed(7)
        generator.reset_from_seed(1)
        seen = []
        for _ in range(2):
            in_replicas, across = execute(step)
            seen += [
                np.asarray(part) for value in in_replicas for part in components(strategy, value)
            ]
            seen.append(np.asarray(across))
        return seen

    first, again = two_steps(), two_steps()
    assert len({part.tobytes() for part in first}) == len(first)
    for drawn, repeated in zip(first, again, strict=True):
        np.testing.assert_array_equal(drawn, repeated)
