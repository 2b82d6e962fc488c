"""Variables of which each replica has a part. What all variables do is tested in tests/contract."""

import contextlib
import gc
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from without_division import without_division

import stratagem as sg
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.mirrored_variable import MirroredVariable

FullySharded = sg.distribute.experimental.FullySharded


def mirrored(count):
    return sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def compiled(function):
    """Returns the program of a compiled function without arguments, as XLA has optimized it."""
    ((entry,),) = function._programs._entries.values()
    program = entry.program
    donated, kept = program.variables.borrow(program.variables.hold())
    return program.jitted.lower(donated, kept, program.consts, []).compile()


@pytest.mark.parametrize(
    ("count", "shape", "part"),
    [(2, (4, 6), (2, 6)), (4, (5, 3), (5, 1)), (3, (4, 5, 2), (4, 2, 2))],
)
def test_each_device_has_its_part_and_nobody_sees_padding(count, shape, part):
    value = np.arange(1.0, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    strategy = mirrored(count)
    with strategy.scope(), FullySharded(min_size=1):
        v = sg.Variable(value)
    assert [shard.data.shape for shard in v.snapshot().addressable_shards] == [part] * count
    step = sg.function(lambda: strategy.run(lambda: (v.read_value(), jnp.min(v), v[-1])))
    for results in (strategy.run(lambda: (v.read_value(), jnp.min(v), v[-1])), step()):
        for whole, least, last in zip(*(r.values for r in results), strict=True):
            np.testing.assert_array_equal(whole, value)
            assert float(least) == 1.0
            np.testing.assert_array_equal(last, value[-1])
    for seen in (v.numpy(), np.asarray(v), v.read_value(), *v.values, sg.function(v.read_value)()):
        np.testing.assert_array_equal(seen, value)
    assert v.shape == shape
    assert v.size == value.size
    assert f"{int(value.flat[-1])}.]" in repr(v)


def test_what_is_divided():
    two, one = mirrored(2), sg.distribute.OneDeviceStrategy("CPU:1")
    with two.scope(), FullySharded(min_size=4):
        large, small, number = sg.Variable(jnp.ones(4)), sg.Variable(jnp.ones(3)), sg.Variable(1.0)
        counter = sg.Variable(
            jnp.zeros(8),
            synchronization=sg.VariableSynchronization.ON_READ,
            aggregation=sg.VariableAggregation.SUM,
        )
    assert isinstance(large, FullyShardedVariable)
    assert isinstance(small, MirroredVariable)
    assert isinstance(number, MirroredVariable)
    assert counter.values[0].shape == (8,)
    with FullySharded(), two.scope():
        default, less = sg.Variable(jnp.ones(1024)), sg.Variable(lambda: jnp.ones(1023))
    assert isinstance(default, FullyShardedVariable)
    assert isinstance(less, MirroredVariable)
    with two.scope():
        after = sg.Variable(jnp.ones(1024))
    assert isinstance(after, MirroredVariable)
    with FullySharded(min_size=1):
        plain = sg.Variable(jnp.ones(4))
        with one.scope():
            alone = sg.Variable(jnp.ones(4))
    assert not isinstance(plain, sg.distribute.DistributedValues)
    assert isinstance(alone, MirroredVariable)


@pytest.mark.parametrize("wrap", [lambda fn: fn, sg.function])
def test_the_block_may_be_inside_or_around_the_replicas(wrap):
    strategy = mirrored(2)
    made = {}

    def create():
        if "second" not in made:
            with FullySharded(min_size=2):
                first = sg.Variable(jnp.ones(4))
            made.update(first=first, second=sg.Variable(jnp.ones(4)))
        return made["first"].read_value()

    wrap(lambda: strategy.run(create))()
    assert [type(v) for v in made.values()] == [FullyShardedVariable, MirroredVariable]
    made.clear()
    with FullySharded(min_size=2):
        wrap(lambda: strategy.run(create))()
    assert [type(v) for v in made.values()] == [FullyShardedVariable] * 2


@without_division
def test_where_variables_cannot_be_divided(make, said):
    with make().scope(), FullySharded(), pytest.raises(NotImplementedError, match=said):
        sg.Variable(jnp.ones(4096))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        FullySharded(min_size=0)


def both(count, values, build):
    """Returns what ``build`` makes of mirrored variables and of divided ones, compiled."""
    results = []
    for block in (contextlib.nullcontext(), FullySharded(min_size=2)):
        strategy = mirrored(count)
        with strategy.scope(), block:
            variables = [sg.Variable(v, aggregation=sg.VariableAggregation.SUM) for v in values]
        made = sg.function(lambda s=strategy, v=variables: s.run(build(v)))()
        results.append([*jax.tree.leaves(made), *(v.numpy() for v in variables)])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def position():
    return sg.distribute.get_replica_context().replica_id_in_sync_group


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_gradients_are_those_of_each_replica(count):
    """Whatever a step does with them: only sums may come from parts."""

    def build(variables):
        (w,) = variables

        def step():
            _, gradient = sg.value_and_grad(lambda: jnp.sum(jnp.sin(w * (1.0 + position()))), w)()
            norm = jnp.sqrt(jnp.sum(gradient**2))
            w.assign_sub(gradient)
            w.assign_sub(gradient / norm)
            total = sg.distribute.get_replica_context().all_reduce("SUM", gradient)
            return gradient, norm, total, w.read_value()

        return step

    both(count, [np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)], build)


@pytest.mark.slow
def test_second_derivatives_and_assignments_inside_gradients():
    def build(variables):
        w, seen = variables

        def loss():
            seen.assign_add(w * (1.0 + position()))
            return jnp.sum(w**3) + jnp.sum(seen)

        def gradient_norm():
            value, (of_w, of_seen) = sg.value_and_grad(loss, [w, seen])()
            return value + jnp.sum(of_w**2) + jnp.sum(of_seen)

        return lambda: sg.value_and_grad(gradient_norm, variables)()

    values = np.linspace(-1, 1, 6, dtype=np.float32)
    both(2, [values, values[::-1].copy()], build)


def test_conditionals_read_and_write_parts():
    def build(variables):
        w, other = variables

        def step():
            def loss():
                kept = sg.cond(jnp.sum(other) > 0, lambda: w * 2.0, lambda: w * 3.0)
                return jnp.sum(kept**2)

            value, gradient = sg.value_and_grad(loss, w)()
            sg.cond(
                jnp.sum(other) > 0,
                lambda: w.assign_sub(gradient).read_value(),
                lambda: other.assign_add(gradient).read_value(),
            )
            return value

        return step

    values = np.linspace(-1, 1, 5, dtype=np.float32)
    both(2, [values, np.ones(5, np.float32)], build)


def step_over_layers(strategy, stack):
    """Returns a step over a stack of layers, each of which is read when its turn comes."""
    optimizer = sg.train.Optimizer(optax.adam(0.01))

    def loss():
        @jax.checkpoint
        def layer(x, i):
            return jnp.tanh(x @ stack[i]), None

        x = jnp.full((3, stack.shape[2]), 1.0 + position())
        return jnp.sum(jax.lax.scan(layer, x, jnp.arange(stack.shape[0]))[0] ** 2)

    def replica():
        _, gradient = sg.value_and_grad(loss, stack)()
        optimizer.apply_gradients([(gradient, stack)])

    return sg.function(lambda: strategy.run(replica))


def test_one_layer_of_a_stack_is_whole_at_a_time():
    kernels = np.random.RandomState(0).randn(4, 16, 16).astype(np.float32) / 4
    strategy = mirrored(2)
    with strategy.scope():
        copied = sg.Variable(kernels)
        with FullySharded():
            stack = sg.Variable(kernels)
    step = step_over_layers(strategy, stack)
    step()
    step_over_layers(strategy, copied)()
    np.testing.assert_allclose(stack.numpy(), copied.numpy(), rtol=1e-5)
    text = compiled(step).as_text()
    # Forward, and again for the gradient, which is scattered as it is summed.
    assert re.findall(r"= (\w+\[[\d,]*\])\S* all-gather\(", text) == ["f32[2,8,16]"] * 2
    assert re.findall(r"= (\w+\[[\d,]*\])\S* reduce-scatter\(", text) == ["f32[8,16]"]
    assert "all-reduce(" not in text


def bytes_by_device(devices):
    """Returns how many bytes of arrays that anybody holds each device has."""
    gc.collect()
    totals = dict.fromkeys(devices, 0)
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            if shard.device in totals:
                totals[shard.device] += shard.data.nbytes
    return list(totals.values())


def test_a_model_that_needs_four_devices_trains():
    """Neither between steps nor in one does a device have room for weights and state of Adam."""
    strategy = mirrored(4)
    devices = strategy.replica_group.devices
    before = bytes_by_device(devices)
    with strategy.scope(), FullySharded():
        stack = sg.Variable(np.random.RandomState(0).randn(16, 64, 64).astype(np.float32) / 8)
    step = step_over_layers(strategy, stack)
    step()
    step()
    whole = 3 * 16 * 64 * 64 * 4
    held = [now - then for now, then in zip(bytes_by_device(devices), before, strict=True)]
    assert all(whole / 4 <= of_device < whole / 4 + 4096 for of_device in held)
    planned = compiled(step).memory_analysis()
    results = planned.output_size_in_bytes - planned.alias_size_in_bytes
    assert planned.argument_size_in_bytes + results + planned.temp_size_in_bytes < 0.5 * whole


def test_a_read_in_a_branch_that_some_replicas_do_not_take_is_refused():
    strategy = mirrored(2)
    with strategy.scope(), FullySharded(min_size=1):
        v = sg.Variable(jnp.ones(4))

    def step():
        return jax.lax.cond(position() == 0, lambda: jnp.sum(v), lambda: 0.0)

    with pytest.raises(sg.errors.ReplicaMismatchError, match="may differ between replicas"):
        sg.function(lambda: strategy.run(step))()
