"""Variables that are left out of weight decay by patterns on their names."""

import functools

import numpy as np
import optax
import pytest

import stratagem as sg

DECAYING = functools.partial(optax.adamw, weight_decay=0.1)
NAMES = ("dense/kernel", "dense/bias", "norm/scale")
EXPECTED = {"dense/kernel": 0.9, "dense/bias": 1.0, "norm/scale": 1.0}


def structure_of(values):
    return {"dense": {"kernel": values[0], "bias": values[1]}, "norm": {"scale": values[2]}}


def decayed(variables, optimizer, **options):
    """Returns what a step without gradients leaves of ones."""
    zeros = [np.zeros((2, 2), np.float32)] * len(NAMES)
    optimizer.apply(structure_of(zeros), variables, **options)
    return {v.name.removesuffix(":0"): float(v.numpy()[1, 1]) for v in sg.nest.flatten(variables)}


def make_variables():
    return structure_of([sg.Variable(np.ones((2, 2), np.float32), name=name) for name in NAMES])


def make_optimizer(transformation=DECAYING, **options):
    patterns = ["bias$", "norm/"]
    return sg.train.Optimizer(
        transformation, learning_rate=1.0, exclude_from_weight_decay=patterns, **options
    )


@pytest.mark.parametrize(
    ("placed", "options"),
    [
        (False, {}),
        (True, {}),
        (True, {"shard_state": True}),
        (True, {"gradient_accumulation_steps": 1, "global_clipnorm": 1.0}),
    ],
)
def test_weights_of_some_names_do_not_decay(placed, options):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope() if placed else sg.distribute.get_strategy().scope():
        variables = make_variables()
    assert decayed(variables, make_optimizer(**options)) == pytest.approx(EXPECTED)


def test_weights_without_names_are_known_by_their_place():
    values = [sg.Variable(np.ones((2, 2), np.float32)) for _ in NAMES]
    assert decayed(structure_of(values), make_optimizer()) == pytest.approx(EXPECTED)


@pytest.mark.parametrize("factory", ["lion", "lamb", "adafactor"])
def test_factories_that_take_a_mask(factory):
    options = {"weight_decay_rate": 0.1} if factory == "adafactor" else {"weight_decay": 0.1}
    variables = make_variables()
    values = decayed(
        variables, make_optimizer(functools.partial(getattr(optax, factory), **options))
    )
    assert values["dense/kernel"] < 0.95
    assert values["dense/bias"] == values["norm/scale"] == 1.0


def test_a_keras_model_and_its_paths():
    with sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = sg.keras.Sequential(
            [sg.keras.Input((2,)), sg.keras.layers.Dense(2), sg.keras.layers.BatchNormalization()]
        )
    optimizer = sg.train.Optimizer(
        DECAYING, learning_rate=1.0, exclude_from_weight_decay=["batch_norm", "/bias"]
    )
    before = model.get_weights()
    variables = model.trainable_variables
    optimizer.apply([np.zeros(v.shape, np.float32) for v in variables], variables)
    factors = [0.9, 1.0, 1.0, 1.0]
    for value, old, factor in zip(variables, before, factors, strict=False):
        np.testing.assert_allclose(value, old * factor, rtol=1e-6)


def test_variables_on_parameter_servers():
    server = sg.distribute.Server({"ps": ["127.0.0.1:0"]}, "ps", 0)
    address = server.target.removeprefix("grpc://")
    cluster = sg.train.ClusterSpec({"ps": [address], "worker": ["127.0.0.1:1"]})
    resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(cluster)
    strategy = sg.distribute.ParameterServerStrategy(resolver)
    try:
        with strategy.scope():
            variables = make_variables()
        assert decayed(variables, make_optimizer()) == pytest.approx(EXPECTED)
    finally:
        strategy.client.close()
        server.shutdown()


def test_a_pattern_that_matches_nothing_is_noticed(caplog):
    optimizer = sg.train.Optimizer(
        DECAYING, learning_rate=1.0, exclude_from_weight_decay=["layer_norm", "bias"]
    )
    decayed(make_variables(), optimizer)
    [warning] = caplog.messages
    assert "['layer_norm'] matches no variable. The names are ['dense/bias', " in warning


@pytest.mark.parametrize(
    ("transformation", "options", "match"),
    [
        (optax.sgd, {"learning_rate": 0.1}, "that takes a mask"),
        (optax.adamw(0.1), {}, "that takes a mask, and a learning rate"),
        (
            DECAYING,
            {"learning_rate": 0.1, "exclude_from_weight_decay": "bias"},
            r"Write \['bias'\]",
        ),
        (
            DECAYING,
            {"learning_rate": 0.1, "exclude_from_weight_decay": ["("]},
            "regular expressions",
        ),
    ],
)
def test_what_cannot_be_left_out(transformation, options, match):
    with pytest.raises(ValueError, match=match):
        sg.train.Optimizer(transformation, **{"exclude_from_weight_decay": ["bias"], **options})
