"""``tf.random``: shapes, dtypes, distributions, seeds, and states that are saved and restored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf
from stratagem._src.core.errors import ContextError, InvalidArgumentError, ShapeMismatchError
from stratagem._src.variables.random_state import RandomState

COUNT = 20_000
GENERATOR = tf.random.Generator.from_seed(5)
SEED = [3, 4]
# Name, what draws, shape, dtype, mean, variance.
DRAWS = [
    ("normal", lambda: tf.random.normal([COUNT], 2.0, 3.0), (COUNT,), "float32", 2, 9),
    ("half", lambda: tf.random.normal(COUNT, dtype=tf.float16), (COUNT,), "float16", 0, 1),
    ("uniform", lambda: tf.random.uniform([COUNT], -1, 2), (COUNT,), "float32", 0.5, 0.75),
    ("ints", lambda: tf.random.uniform([COUNT], 1, 7, tf.int32), (COUNT,), "int32", 3.5, 35 / 12),
    ("truncated", lambda: tf.random.truncated_normal([COUNT]), (COUNT,), "float32", 0, 0.774),
    ("gamma", lambda: tf.random.gamma([COUNT], [3.0], 2.0), (COUNT, 1), "float32", 1.5, 0.75),
    ("poisson", lambda: tf.random.poisson([COUNT], [4.0]), (COUNT, 1), "float32", 4, 4),
    (
        "categorical",
        lambda: tf.random.categorical(jnp.log(jnp.array([[0.25, 0.75]])), COUNT),
        (1, COUNT),
        "int32",
        0.75,
        0.1875,
    ),
    ("generator", lambda: GENERATOR.normal([COUNT]), (COUNT,), "float32", 0, 1),
    ("binomial", lambda: GENERATOR.binomial([COUNT], 8.0, 0.5), (COUNT,), "int32", 4, 2),
    ("stateless", lambda: tf.random.stateless_normal([COUNT], SEED), (COUNT,), "float32", 0, 1),
    (
        "stateless gamma",
        lambda: tf.random.stateless_gamma([COUNT, 1], SEED, [3.0]),
        (COUNT, 1),
        "float32",
        3,
        3,
    ),
    ("dropout", lambda: tf.nn.dropout(tf.ones([COUNT]), 0.2), (COUNT,), "float32", 1, 0.25),
]


# Of these the sampler is that of another one.
BREADTH = {"half", "generator", "binomial", "stateless", "stateless gamma"}


@pytest.mark.parametrize(
    ("name", "draw", "shape", "dtype", "mean", "variance"),
    [pytest.param(*draw, marks=[pytest.mark.slow] * (draw[0] in BREADTH)) for draw in DRAWS],
)
def test_shape_dtype_and_distribution(name, draw, shape, dtype, mean, variance):
    tf.random.set_seed(11)
    drawn = draw()
    assert drawn.shape == shape
    assert drawn.dtype == dtype
    values = np.asarray(drawn, np.float64)
    # Six standard deviations of the mean of so many.
    assert abs(values.mean() - mean) < 6 * np.sqrt(variance / COUNT)
    assert abs(values.var() - variance) < 0.1 * variance


def test_set_seed_begins_again_eagerly_and_compiled():
    compiled = tf.function(lambda: tf.random.normal([2]))

    def draws():
        tf.random.set_seed(1)
        return [tf.random.normal([2]), compiled(), compiled(), tf.random.normal([2])]

    first, again = draws(), draws()
    assert len({part.tobytes() for part in map(np.asarray, first)}) == 4
    np.testing.assert_array_equal(first, again)
    tf.random.set_seed(2)
    assert (np.asarray(tf.random.normal([2])) != np.asarray(first[0])).all()


def test_functions_with_a_seed_draw_from_its_stream():
    def draws():
        tf.random.set_seed(1)
        tf.random.normal([2])
        return [tf.random.normal([2], seed=5), tf.random.normal([2], seed=5)]

    first = draws()
    tf.random.normal([2])
    again = draws()
    assert (np.asarray(first[0]) != np.asarray(first[1])).all()
    np.testing.assert_array_equal(first, again)


def test_numbers_differ_between_programs_without_a_seed():
    tf.random.set_seed(None)
    before = np.asarray(tf.random.normal([4]))
    tf.random.set_seed(None)
    assert (np.asarray(tf.random.normal([4])) != before).all()


def test_stateless_numbers_are_those_of_the_seed():
    once = tf.random.stateless_uniform([4], [1, 2])
    np.testing.assert_array_equal(once, tf.random.stateless_uniform([4], np.array([1, 2])))
    np.testing.assert_array_equal(once, tf.function(tf.random.stateless_uniform)([4], [1, 2]))
    for other in ([2, 1], [1, 2 + 2**40], tf.random.fold_in([1, 2], 3), tf.random.split([1, 2])[0]):
        assert (np.asarray(tf.random.stateless_uniform([4], other)) != np.asarray(once)).all()
    with pytest.raises(ShapeMismatchError, match="two integers"):
        tf.random.stateless_uniform([4], 1)


def test_generator_is_saved_and_restored(tmp_path):
    generator = tf.random.Generator.from_seed([1, 2])
    draw = tf.function(lambda: generator.uniform([3]))
    draw()
    checkpoint = tf.train.Checkpoint(generator=generator)
    path = checkpoint.save(str(tmp_path / "model"))
    expected = [np.asarray(draw()), np.asarray(generator.uniform([3]))]
    checkpoint.restore(path)
    np.testing.assert_array_equal([draw(), generator.uniform([3])], expected)
    copied = tf.random.Generator(copy_from=generator)
    np.testing.assert_array_equal(copied.normal([3]), generator.normal([3]))


def test_generators_that_are_split_have_their_own_streams():
    first, second = tf.random.Generator.from_seed(1).split(2)
    again, _ = tf.random.Generator.from_seed(1).split(2)
    drawn = first.normal([4])
    assert (np.asarray(drawn) != np.asarray(second.normal([4]))).all()
    np.testing.assert_array_equal(drawn, again.normal([4]))
    assert tf.random.Generator.from_seed(1).make_seeds(3).shape == (2, 3)


def test_skip_and_the_count_beyond_32_bits():
    generator = tf.random.Generator.from_key_counter(1, 2**32 - 1)
    generator.normal([1])
    assert generator.state.numpy().tolist() == [1, 0, 0, 1]
    generator.skip(5)
    assert generator.state.numpy().tolist() == [1, 0, 5, 1]


def test_set_global_generator():
    tf.random.set_global_generator(tf.random.Generator.from_seed(1))
    drawn = tf.random.get_global_generator().normal([2])
    np.testing.assert_array_equal(drawn, tf.random.Generator.from_seed(1).normal([2]))


def test_a_failed_call_takes_its_draws_back():
    state = RandomState.of_key([1, 2])

    @tf.function
    def fails():
        state.next_key()
        jax.debug.callback(lambda: 1 / 0)

    with pytest.raises(Exception, match="division"):
        fails()
    assert state.numpy()[2] == 0


def test_random_numbers_in_a_dataset_differ_by_element_and_epoch():
    dataset = tf.data.Dataset.range(3).map(lambda _: tf.random.uniform([]))
    seen = [float(x) for _ in range(2) for x in dataset]
    assert len(set(seen)) == 6


def test_data_that_is_read_ahead_draws_from_a_stream_of_its_own():
    def draws():
        tf.random.set_seed(3)
        elements = iter(tf.data.Dataset.range(4).map(lambda _: tf.random.uniform([])).prefetch(2))
        # Eagerly, a call has the variables that it uses for itself until it ends.
        step = tf.function(lambda: (tf.random.uniform([]), next(elements)))
        tf.config.run_functions_eagerly(True)
        try:
            seen = [float(x) for _ in range(4) for x in step()]
        finally:
            tf.config.run_functions_eagerly(False)
            elements.close()
        return seen

    first = draws()
    assert len(set(first)) == 8
    assert draws() == first


def test_drawing_in_a_transformation_of_jax_is_refused():
    for draw in (
        lambda: jax.jit(lambda: tf.random.normal([2]))(),
        tf.function(lambda: tf.map_fn(lambda x: x + tf.random.normal([]), tf.ones([3]))),
    ):
        with pytest.raises(ContextError, match="stateless"):
            draw()


def test_wrong_arguments():
    with pytest.raises(InvalidArgumentError, match="maxval"):
        tf.random.uniform([2], dtype=tf.int32)
    with pytest.raises(InvalidArgumentError, match="minval < maxval"):
        tf.random.uniform([2], 3, 3, dtype=tf.int32)
    with pytest.raises(InvalidArgumentError, match="floating-point"):
        tf.random.normal([2], dtype=tf.int32)
    with pytest.raises(InvalidArgumentError, match=r"\[0, 1\)"):
        tf.nn.dropout(tf.ones([2]), 1.0)
    with pytest.raises(ShapeMismatchError, match="four numbers"):
        tf.random.Generator.from_state([1, 2, 3])


def test_dropout_with_a_noise_shape_and_without_dropping():
    rows = np.asarray(tf.nn.dropout(tf.ones([50, 4]), 0.5, noise_shape=[None, 1]))
    assert {tuple(row) for row in rows} == {(0.0,) * 4, (2.0,) * 4}
    assert tf.nn.dropout(tf.ones([2]), 0.0).tolist() == [1.0, 1.0]
