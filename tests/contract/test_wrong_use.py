import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replicas import IN_WORKERS, components, one_process

import stratagem as sg

pytestmark = pytest.mark.about("calls")


def replica():
    return sg.distribute.get_replica_context()


def mirrored(count=2):
    return sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


@pytest.mark.parametrize("method", ["reduce", "gather", "run", "scope"])
def test_cross_replica_methods_in_replica_context(placed_strategy, execute, method):
    calls = {
        "reduce": lambda: placed_strategy.reduce("SUM", jnp.ones(1), axis=None),
        "gather": lambda: placed_strategy.gather(jnp.ones(1), axis=0),
        "run": lambda: placed_strategy.run(lambda: 1),
        "scope": lambda: placed_strategy.scope().__enter__(),
    }
    with pytest.raises(RuntimeError, match="replica context"):
        execute(lambda: placed_strategy.run(calls[method]))


def test_strategies_cannot_be_mixed(placed_strategy):
    other = mirrored(1 if IN_WORKERS else 2)
    with placed_strategy.scope():
        with pytest.raises(RuntimeError, match="cannot be entered inside"):
            other.scope().__enter__()
        with pytest.raises(RuntimeError, match="cannot be mixed"):
            other.run(lambda: 1)
        with pytest.raises(RuntimeError, match="inside a strategy's scope"):
            sg.distribute.experimental_set_strategy(other)
        with placed_strategy.scope():
            assert sg.distribute.get_strategy() is placed_strategy


@one_process("makes a strategy on devices of its own")
def test_experimental_set_strategy():
    strategy = mirrored()
    sg.distribute.experimental_set_strategy(strategy)
    try:
        assert sg.distribute.get_strategy() is strategy
        assert sg.distribute.has_strategy()
        assert sg.distribute.in_cross_replica_context()
        assert len(sg.Variable(1.0).values) == 2
        assert strategy.run(sg.distribute.in_cross_replica_context) is False
    finally:
        sg.distribute.experimental_set_strategy(None)
    assert not sg.distribute.has_strategy()


def test_a_variable_of_another_strategy(many, execute):
    with mirrored(1 if IN_WORKERS else 3).scope():
        v = sg.Variable(1.0, aggregation=sg.VariableAggregation.SUM)
    with pytest.raises(RuntimeError, match="belongs to"):
        execute(lambda: many.run(lambda: v.assign_add(jnp.float32(1))))
    assert float(v) == 1


@one_process("makes a strategy on devices of its own")
def test_two_strategies_in_one_function():
    a, b = mirrored(2), mirrored(3)
    with pytest.raises(RuntimeError, match="one strategy"):
        sg.function(lambda: (a.run(lambda: jnp.ones(1)), b.run(lambda: jnp.ones(1))))()


@one_process("makes a strategy on devices of its own")
def test_two_strategies_on_the_same_devices_are_independent():
    a, b = mirrored(2), mirrored(2)
    for strategy in (a, b, a):
        result = strategy.run(lambda: replica().all_reduce("SUM", 1.0))
        assert float(result.values[0]) == 2


USES = [
    lambda x: x + 1,
    lambda x: 1 - x,
    lambda x: jnp.add(x, 1),
    lambda x: np.asarray(x),
    lambda x: float(x),
    lambda x: bool(x),
    lambda x: x[0],
    lambda x: len(x),
    lambda x: jnp.sum(x),
    lambda x: x > 1,
]


@one_process("makes a strategy on devices of its own")
@pytest.mark.parametrize("use", USES)
def test_a_per_replica_value_is_not_an_array(use):
    value = mirrored().run(lambda: jnp.ones(2))
    with pytest.raises(ValueError, match=r"strategy\.reduce"):
        use(value)


def test_a_per_replica_value_assigned_or_reduced_inside_a_replica(many):
    value = many.run(lambda: jnp.ones(()))
    with pytest.raises(ValueError, match="PerReplica"):
        many.run(lambda: replica().all_reduce("SUM", value))
    with pytest.raises(ValueError, match="PerReplica"):
        sg.Variable(1.0).assign(value)
    with pytest.raises(ValueError, match="PerReplica"):
        sg.Variable(value)


class TorchTensor:
    """What PyTorch's tensors have."""

    __module__ = "torch"
    dtype = "torch.float32"

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return np.ones(2, np.float32)


def test_a_tensor_of_torch_in_a_step(placed_strategy, execute):
    with pytest.raises(ValueError, match=r"Pass tensor\.detach\(\)\.cpu\(\)\.numpy\(\)"):
        execute(lambda x: placed_strategy.run(lambda x: x, args=(x,)), TorchTensor())
    with placed_strategy.scope():
        assert sg.Variable(TorchTensor()).numpy().tolist() == [1, 1]


def test_numpy_functions_in_a_compiled_step(strategy):
    with pytest.raises(TypeError, match=r"np\.asarray\(x\).*use those of jax\.numpy"):
        sg.function(lambda: strategy.run(lambda x: np.asarray(x), args=(jnp.ones(2),)))()


@one_process("makes a strategy of this process")
def test_a_backend_of_torch_in_place_of_a_resolver():
    with pytest.raises(ValueError, match=r"got 'nccl'.*leave it out"):
        sg.distribute.MultiWorkerMirroredStrategy("nccl")


def test_args_must_be_a_sequence(strategy):
    with pytest.raises(ValueError, match=r"args=\(x,\)"):
        strategy.run(lambda x: x, args=jnp.ones(2))


def test_python_control_flow_on_a_traced_value(many):
    def step():
        if replica().replica_id_in_sync_group == 0:
            return 1.0
        return 2.0

    assert [float(v) for v in components(many, many.run(step))][:2] == [1, 2]
    with pytest.raises(TypeError, match=r"jnp\.where or lax\.cond"):
        sg.function(lambda: many.run(step))()


def test_variables_inside_the_users_own_jit(strategy):
    with strategy.scope():
        v = sg.Variable(1.0, aggregation=sg.VariableAggregation.MEAN)
    with pytest.raises(RuntimeError, match=r"stratagem\.function in place of jax\.jit"):
        jax.jit(lambda x: v.assign(x))(1.0)
    with pytest.raises(RuntimeError, match="compiled in as a constant"):
        jax.jit(lambda x: x + v)(1.0)
    with pytest.raises(RuntimeError, match="JAX transformation"):
        jax.grad(lambda x: v.assign(x).read_value())(1.0)
    assert float(v) == 1
    assert float(jax.grad(lambda x: x * v)(2.0)) == 1


def test_variables_assigned_inside_a_transformation_of_a_step(strategy):
    with strategy.scope():
        v = sg.Variable(1.0, aggregation=sg.VariableAggregation.MEAN)

    def step():
        jax.lax.scan(lambda c, _: (v.assign(c).read_value(), None), 1.0, None, length=2)

    with pytest.raises(RuntimeError, match="cannot leave"):
        sg.function(lambda: strategy.run(step))()
    assert float(v) == 1


def test_variables_inside_replicas_of_the_users_own_jit(many):
    with many.scope():
        v = sg.Variable(1.0)
    with pytest.raises(RuntimeError, match=r"stratagem\.function"):
        jax.jit(lambda x: many.run(lambda x: x + v, args=(x,)))(1.0)


def test_a_collective_in_the_jit_of_an_eager_replica(many):
    with pytest.raises(RuntimeError, match=r"stratagem\.function"):
        many.run(lambda: jax.jit(lambda x: replica().all_reduce("SUM", x))(1.0))


def test_a_replica_context_used_elsewhere(many):
    context = many.experimental_local_results(many.run(replica))[0]
    with pytest.raises(RuntimeError, match="outside of its replica"):
        context.all_reduce("SUM", 1.0)
    with pytest.raises(RuntimeError, match="outside of its replica"):
        context.merge_call(lambda s: 1)


@pytest.mark.not_on("parameter_server2", reason="an ON_READ variable has one value, on the server")
def test_collectives_inside_update(many):
    with many.scope():
        v = sg.Variable(0.0, synchronization=sg.VariableSynchronization.ON_READ)
    with pytest.raises(RuntimeError, match="inside extended"):
        many.extended.update(v, lambda v: replica().all_reduce("SUM", 1.0))


@one_process("makes a strategy on devices of its own")
def test_a_per_replica_argument_of_another_size(many):
    value = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(3)]).run(lambda: jnp.ones(1))
    with pytest.raises(ValueError, match="for each of the"):
        many.run(lambda x: x, args=(value,))


@one_process("workers do not know the shapes of each other")
def test_a_ragged_value_captured_by_a_function(many):
    ragged = many.experimental_distribute_values_from_function(
        lambda ctx: np.zeros(ctx.replica_id_in_sync_group)
    )
    with pytest.raises(ValueError, match="same shape"):
        sg.function(lambda: many.run(lambda x: x, args=(ragged,)))()


@one_process("workers that do different things are a fault of the cluster")
def test_replicas_that_return_different_structures(many):
    def step():
        return [1.0] * int(replica().replica_id_in_sync_group)

    with pytest.raises(RuntimeError, match="same structure"):
        many.run(step)


@one_process("takes devices of this process")
def test_a_captured_array_of_all_devices_in_an_eager_replica():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    total = strategy.reduce("SUM", strategy.run(lambda: jnp.ones(2)), axis=None)
    with pytest.raises(
        sg.errors.DeviceError, match=r"Pass it as an argument, strategy\.run"
    ) as caught:
        strategy.run(lambda x: x + total, args=(jnp.ones(2),))
    assert "incompatible devices" in str(caught.value.__cause__)
    result = strategy.run(lambda x, total: x + total, args=(jnp.ones(2), total))
    assert result.values[1].tolist() == [3, 3]
