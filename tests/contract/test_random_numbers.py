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


def test_a_conditional_draws_in_some_replicas(strategy):
    """As in an augmentation that is applied with a probability."""

    def draw():
        chance = tf.random.uniform([])
        noise = tf.cond(
            chance < 0.5,
            lambda: tf.random.uniform([]) + tf.random.uniform([]) - 3.0,
            lambda: tf.cond(chance < 0.75, lambda: tf.random.uniform([]), lambda: -chance),
        )
        return tf.stack([chance, noise, tf.random.uniform([])])

    @tf.function
    def step():
        return strategy.run(draw)

    tf.random.set_seed(3)
    rows = np.stack([part for _ in range(8) for part in components(strategy, step())])
    chances, noise = rows[:, 0], rows[:, 1]
    assert np.array_equal(noise < -1, chances < 0.5)
    assert np.array_equal(noise == -chances, chances >= 0.75)
    assert len(np.unique(rows.ravel().round(6))) == rows.size
