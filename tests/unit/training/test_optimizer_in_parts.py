"""Optimizers whose state, or whose variables, lie in parts take the steps that they take otherwise."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from without_division import without_division

import stratagem as sg
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable

FullySharded = sg.distribute.experimental.FullySharded
slow = pytest.mark.slow


def mirrored(count):
    return sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


class Training:
    """A small network that takes steps."""

    def __init__(self, count, kind, make, compiled=True, **options):
        self.strategy = mirrored(count)
        random = np.random.RandomState(0)
        block = FullySharded() if kind == "variables" else contextlib.nullcontext()
        with self.strategy.scope(), block:
            self.variables = {
                "first": sg.Variable(random.randn(48, 33).astype(np.float32) / 4),
                "bias": sg.Variable(np.zeros(33, np.float32)),
                "second": sg.Variable(random.randn(33, 47).astype(np.float32) / 4),
            }
        self.optimizer = sg.train.Optimizer(make(), shard_state=kind == "state", **options)
        self.optimizer.build(self.variables)
        batch = [random.randn(4, 48).astype(np.float32) for _ in range(count)]
        self.batch = self.strategy.experimental_distribute_values_from_function(
            lambda context: batch[context.replica_id_in_sync_group]
        )
        self.step = sg.function(self._step) if compiled else self._step

    def _step(self):
        def replica(x):
            v = self.variables

            def loss():
                predicted = jnp.tanh(x @ v["first"] + v["bias"]) @ v["second"]
                return self.optimizer.scale_loss(jnp.mean((predicted - 1) ** 2))

            value, gradients = sg.value_and_grad(loss, v)()
            self.optimizer.apply(gradients, v)
            return value

        return self.strategy.run(replica, args=(self.batch,))

    def state(self):
        held = [*self.variables.values(), *self.optimizer.variables]
        return [v.numpy() for v in held]

    def parts(self):
        """Returns how many bytes of state each device has, and how many there are."""
        held = self.optimizer.variables
        return (
            [
                sum(v.snapshot().addressable_shards[i].data.nbytes for v in held)
                for i in range(self.strategy.num_replicas_in_sync)
            ],
            sum(v.size * v.dtype.itemsize for v in held),
        )


def layer_wise():
    return optax.chain(optax.clip_by_global_norm(0.05), optax.lamb(0.01))


def in_turns():
    """Looks at all gradients, counts, and has branches."""
    inner = optax.apply_if_finite(optax.adamw(optax.cosine_decay_schedule(0.01, 4)), 2)
    return optax.masked(inner, [True, False, True])


def noisy():
    return optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.sgd(0.1, momentum=0.9))


def factored():
    return optax.adafactor(0.01, min_dim_size_to_factor=16)


def orthogonal():
    return optax.contrib.muon(0.01)


CASES = [
    pytest.param(layer_wise, 3, True, id="layer_wise-3-compiled"),
    pytest.param(lambda: optax.adam(0.01), 2, False, id="adam-2-eager", marks=slow),
    pytest.param(in_turns, 3, True, id="in_turns-3-compiled", marks=slow),
    *(
        pytest.param(make, count, compiled, id=f"{make.__name__}-{count}-{compiled}", marks=slow)
        for make in (noisy, factored, orthogonal, layer_wise)
        for count, compiled in [(2, True), (2, False), (3, True)]
        if (make, count) != (layer_wise, 3)
    ),
]


@pytest.mark.parametrize("kind", ["state", "variables"])
@pytest.mark.parametrize(("make", "count", "compiled"), CASES)
def test_every_transformation_does_what_it_does_to_whole_arrays(kind, make, count, compiled):
    ways = [Training(count, way, make, compiled) for way in ("copies", kind)]
    for training in ways:
        for _ in range(3):
            training.step()
    for expected, got in zip(*(training.state() for training in ways), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6)


@slow
@pytest.mark.parametrize("kind", ["state", "variables"])
@pytest.mark.parametrize(
    "options",
    [
        {"global_clipnorm": 0.05, "gradient_accumulation_steps": 2},
        {"loss_scale": "dynamic", "clipnorm": 0.05},
    ],
)
def test_options_of_the_optimizer(kind, options):
    ways = [Training(2, way, lambda: optax.adam(0.01), **options) for way in ("copies", kind)]
    for training in ways:
        for _ in range(3):
            training.step()
    for expected, got in zip(*(training.state() for training in ways), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ["state", "variables"])
def test_each_device_has_a_part_of_the_state(kind):
    training = Training(2, kind, lambda: optax.adam(0.01))
    before = training.parts()
    training.step()
    assert training.parts() == before
    of_devices, whole = before
    # All but the counts and the moments of the bias, and what follows the last elements.
    assert all(0.5 * whole < part < 0.53 * whole for part in of_devices)
    copies, _ = Training(2, "copies", lambda: optax.adam(0.01)).parts()
    assert copies == [whole, whole]


def collectives(function):
    ((entry,),) = function._programs._entries.values()
    program = entry.program
    donated, kept = program.variables.borrow(program.variables.hold())
    text = program.jitted.lower(donated, kept, program.consts, []).compile().as_text()
    found = re.findall(r"= (\w+\[[\d,]*\])\S* (all-gather|reduce-scatter|all-reduce)\(", text)
    return sorted((name, shape) for shape, name in found)


def test_what_travels_in_a_step_with_divided_state():
    """Sums of gradients to their replicas, all together; and new values back."""
    training = Training(2, "state", lambda: optax.adam(0.01))
    training.step()
    each = 24 * 33 + 33 * 24
    assert collectives(training.step) == [
        ("all-gather", f"f32[2,{each}]"),
        ("all-reduce", "f32[33]"),
        ("reduce-scatter", f"f32[1,{each}]"),
    ]


def test_what_travels_in_a_step_with_divided_variables():
    """Small variables together, each gradient as it is summed, and nothing for the update."""
    training = Training(2, "variables", lambda: optax.adam(0.01))
    training.step()
    assert collectives(training.step) == [
        ("all-gather", "f32[2,1584]"),
        ("all-reduce", "f32[33]"),
        ("reduce-scatter", "f32[24,33]"),
        ("reduce-scatter", "f32[33,24]"),
    ]


def test_a_checkpoint_does_not_say_how_it_was_divided(tmp_path):
    def checkpoint(training):
        return sg.train.Checkpoint(model=training.variables, optimizer=training.optimizer)

    saved = Training(2, "copies", lambda: optax.adam(0.01))
    saved.step()
    path = checkpoint(saved).save(tmp_path / "copies")
    saved.step()
    for count, kind in [(4, "variables"), (2, "variables"), (3, "state"), (2, "copies")]:
        training = Training(count, kind, lambda: optax.adam(0.01))
        checkpoint(training).restore(path).assert_consumed()
        path = checkpoint(training).save(tmp_path / f"{kind}{count}")
    training.step()
    for expected, got in zip(saved.state(), training.state(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


@slow
def test_outside_of_replicas():
    expected = None
    for shard_state in (False, True):
        strategy = mirrored(2)
        with strategy.scope():
            v = sg.Variable(np.linspace(-1, 1, 2047, dtype=np.float32))
        optimizer = sg.train.Optimizer(optax.adam(0.1), shard_state=shard_state)

        def step(optimizer=optimizer, v=v):
            optimizer.apply([v.read_value() ** 2], [v])

        with strategy.scope():
            step()
            sg.function(step)()
        expected = v.numpy() if expected is None else expected
        np.testing.assert_allclose(v.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert [type(v) is FullyShardedVariable for v in optimizer.variables] == [False] * 2 + [
        True
    ] * 2


@without_division
def test_state_that_cannot_be_divided_is_refused_before_anything_changes(make, said):
    strategy = make()
    with strategy.scope():
        v = sg.Variable(np.ones(2048, np.float32))
    optimizer = sg.train.Optimizer(optax.adam(0.1), shard_state=True)
    for call in (strategy.run, sg.function(strategy.run)):
        with pytest.raises(NotImplementedError, match=f"shard_state=True.*{said}"):
            call(lambda: optimizer.apply([jnp.ones(2048)], [v]))
    assert optimizer.variables == []
    assert v.numpy().tolist() == [1.0] * 2048


def test_one_replica_has_all_of_the_state():
    v = sg.Variable(np.ones(2048, np.float32))
    optimizer = sg.train.Optimizer(optax.sgd(0.5, momentum=0.9), shard_state=True)
    optimizer.apply([jnp.ones(2048)], [v])
    assert v.numpy().tolist() == [0.5] * 2048
