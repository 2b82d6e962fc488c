"""Initial values that NumPy computes: those of Keras, bit for bit, without a program for each shape."""

import numpy as np
import pytest
from keras_training import keras, mirrored

import stratagem as sg
from stratagem._src.integrations.keras.host_initializers import (
    INITIAL_VALUES_VARIABLE,
    host_value,
)
from stratagem._src.jax_compat import host_random

made = keras.initializers
COMPUTED = {
    "zeros": made.Zeros,
    "ones": made.Ones,
    "uniform": made.RandomUniform,
    "normal": made.RandomNormal,
    "truncated_normal": made.TruncatedNormal,
    "glorot_uniform": made.GlorotUniform,
    "he_normal": made.HeNormal,
    "untruncated": lambda seed=None: made.VarianceScaling(2, "fan_in", "untruncated_normal", seed),
    "orthogonal": lambda seed=None: made.Orthogonal(0.7, seed),
    "orthogonal_wide": made.Orthogonal,
}


def assert_same_bits(one, other):
    one, other = np.asarray(one), np.asarray(other)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", COMPUTED)
def test_values_are_those_of_keras(name):
    make = COMPUTED[name]
    initializer = make() if name in ("zeros", "ones") else make(seed=11)
    shape = (2, 5, 17) if name == "orthogonal_wide" else (3, 3, 8, 5)
    value = host_value(initializer, shape, "float32")
    if value is None:
        assert not host_random.KNOWN_ROUNDING
        assert "orthogonal" in name or "normal" in name or "untruncated" in name
        return
    assert_same_bits(value, initializer(shape, dtype="float32"))


def test_models_may_be_built_while_a_function_is_traced_under_a_tape():
    host_random._rounds_once.cache_clear()  # found out by a program, which must not be traced
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3, kernel_initializer="he_normal")])

    def step(x):
        with sg.GradientTape() as tape:
            loss = sg.reduce_sum(model(x))
        return tape.gradient(loss, model.trainable_variables)[1]

    result = sg.function(lambda: strategy.run(step, args=(np.ones((2, 4), np.float32),)))()
    for gradient in strategy.experimental_local_results(result):
        np.testing.assert_array_equal(gradient, [2, 2, 2])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_values_of_random_shapes_are_those_of_keras(seed):
    random = np.random.default_rng(seed)
    shape = tuple(map(int, random.integers(1, 50, size=random.integers(2, 5))))
    for make in COMPUTED.values():
        initializer = (
            make() if make in (made.Zeros, made.Ones) else make(seed=int(random.integers(9)))
        )
        value = host_value(initializer, shape, "float32")
        if value is not None:
            assert_same_bits(value, initializer(shape, dtype="float32"))


def test_the_rest_is_left_to_keras():
    class Own(made.GlorotUniform):
        def __call__(self, shape, dtype=None):
            return super().__call__(shape, dtype) * 2

    generator = keras.random.SeedGenerator(3)
    before = np.asarray(generator.state)
    for initializer in (
        Own(),
        made.RandomUniform(0.1, 0.3),
        made.RandomUniform(seed=generator),
        lambda shape, dtype=None: np.ones(shape),
    ):
        assert host_value(initializer, (3, 4), "float32") is None
    assert_same_bits(generator.state, before)
    assert host_value(made.GlorotUniform(), (3, 4), "bfloat16") is None
    with pytest.raises(ValueError, match="at least two-dimensional"):
        host_value(made.Orthogonal(), (3,), "float32")


def test_zeros_have_the_dtype_of_the_variable():
    assert_same_bits(
        host_value(made.Zeros(), (3,), "bfloat16"), made.Zeros()((3,), dtype="bfloat16")
    )
    assert host_value(made.Ones(), (2,), "int32").dtype == np.int32


def weights_of_a_model():
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Conv1D(3, 2), keras.layers.LSTM(4), keras.layers.Dense(2)]
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((6, 5)), *layers])
    return model.get_weights()


def test_a_model_has_the_weights_that_jax_gives_it(monkeypatch):
    by_numpy = weights_of_a_model()
    monkeypatch.setenv(INITIAL_VALUES_VARIABLE, "jax")
    assert host_value(made.Zeros(), (3,), "float32") is None
    for one, other in zip(by_numpy, weights_of_a_model(), strict=True):
        assert_same_bits(one, other)


def test_no_program_is_compiled_for_a_shape(caplog):
    with mirrored(2).scope(), caplog.at_level("DEBUG", "jax._src.dispatch"):
        for width in (31, 37, 41):
            keras.layers.Dense(width).build((None, width))
    assert not [r for r in caplog.messages if "uniform" in r or "broadcast" in r]
