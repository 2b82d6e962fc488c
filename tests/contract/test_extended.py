import jax.numpy as jnp
import numpy as np
import pytest
from replicas import IN_WORKERS, components, one_process

import stratagem as sg

pytestmark = pytest.mark.about("collectives", "variables")


def replica():
    return sg.distribute.get_replica_context()


@pytest.mark.layout
def test_a_training_step_with_merge_call_and_update(strategy, execute):
    """What an optimizer does: reduce the gradients together, update where the variables live."""
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        w, b = sg.Variable([1.0, 2.0]), sg.Variable(0.5)

    def apply(strategy, gradients):
        pairs = list(zip(gradients, (w, b), strict=True))
        for gradient, variable in zip(
            strategy.extended.batch_reduce_to("MEAN", pairs), (w, b), strict=True
        ):
            strategy.extended.update(variable, lambda v, g: v.assign_sub(0.1 * g), args=(gradient,))

    def step():
        x = replica().replica_id_in_sync_group + 1.0
        loss, gradients = sg.value_and_grad(lambda: jnp.sum(w * w) * x + b * x, (w, b))()
        replica().merge_call(apply, args=(gradients,))
        return loss

    losses = execute(lambda: strategy.run(step))
    mean = np.mean([i + 1.0 for i in range(n)])
    np.testing.assert_allclose(w.numpy(), np.array([1, 2]) * (1 - 0.2 * mean), rtol=1e-6)
    assert float(b) == pytest.approx(0.5 - 0.1 * mean)
    first = components(strategy, losses)[0]
    assert float(first) == pytest.approx(5.5)


def test_reduce_to_gives_mirrored_values(many, execute):
    values = many.run(lambda: replica().replica_id_in_sync_group + jnp.ones(2))

    def call(values):
        mirrored = many.extended.reduce_to("SUM", values, destinations=values)
        assert isinstance(mirrored, sg.distribute.Mirrored)
        return mirrored, mirrored * 2

    mirrored, doubled = execute(call, values)
    total = sum(range(1, many.num_replicas_in_sync + 1))
    np.testing.assert_array_equal(doubled, [2 * total] * 2)
    assert [c.device for c in mirrored.values] == list(many.replica_group.local_devices)
    run = execute(lambda m: many.run(lambda m: m + 1, args=(m,)), mirrored)
    np.testing.assert_array_equal(run.values[-1], [total + 1] * 2)


@one_process("needs a device that no replica has")
def test_reduce_to_one_device(many):
    values = many.run(lambda: jnp.ones(2))
    result = many.extended.reduce_to("SUM", values, destinations="CPU:6")
    assert str(next(iter(result.devices()))).endswith("6")
    np.testing.assert_array_equal(result, [many.num_replicas_in_sync] * 2)


@pytest.mark.not_on("parameter_server2", reason="an ON_READ variable has one value, on the server")
def test_update_of_a_sync_on_read_variable(many):
    with many.scope():
        v = sg.Variable(
            0.0,
            synchronization=sg.VariableSynchronization.ON_READ,
            aggregation=sg.VariableAggregation.SUM,
        )
    n = many.num_replicas_in_sync
    values = many.run(lambda: replica().replica_id_in_sync_group + 1.0)
    many.extended.update(v, lambda v, x: v.assign_add(x), args=(values,))
    assert [float(c) for c in components(many, v)] == [i + 1.0 for i in range(n)]

    def step(x):
        replica().merge_call(
            lambda s, x: s.extended.update(v, lambda v, x: v.assign_add(x), args=(x,)), args=(x,)
        )

    sg.function(lambda x: many.run(step, args=(x,)))(values)
    assert [float(c) for c in components(many, v)] == [2 * (i + 1.0) for i in range(n)]


def test_update_with_a_per_replica_value_would_make_copies_diverge(many):
    with many.scope():
        v = sg.Variable(0.0)
    values = many.run(lambda: replica().replica_id_in_sync_group + 1.0)
    with pytest.raises(ValueError, match="diverge"):
        many.extended.update(v, lambda v, x: v.assign(x), args=(values,))


def test_update_inside_a_replica(strategy, execute):
    """As optimizers write it that have all-reduced the gradients: the replicas meet, and do it once."""
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        v = sg.Variable([1.0, 2.0])
    called = []

    def subtract(variable, gradient, rate):
        called.append(sg.distribute.in_cross_replica_context())
        return variable.assign_sub(rate * gradient)

    def step():
        gradient = replica().all_reduce("MEAN", replica().replica_id_in_sync_group + jnp.ones(2))
        strategy.extended.update(v, subtract, args=(gradient,), kwargs={"rate": 0.5})

    execute(lambda: strategy.run(step))
    np.testing.assert_allclose(v.numpy(), np.array([1, 2]) - 0.5 * (n + 1) / 2)
    if not isinstance(strategy, sg.distribute.ParameterServerStrategy):  # called on the server
        assert called == [True]
        results = strategy.run(
            lambda: strategy.extended.update(v, lambda v, x: x, args=("done",), group=False)
        )
        assert results == ("done",)


@pytest.mark.not_on("parameter_server2", reason="an ON_READ variable has one value, on the server")
def test_update_of_a_sync_on_read_variable_inside_a_replica(many, execute):
    with many.scope():
        v = sg.Variable(0.0, synchronization=sg.VariableSynchronization.ON_READ)

    def step():
        x = replica().replica_id_in_sync_group + 1.0
        many.extended.update(v, lambda v, x: v.assign_add(x), args=(x,))

    execute(lambda: many.run(step))
    expected = [i + 1.0 for i in range(many.num_replicas_in_sync)]
    assert [float(c) for c in components(many, v)] == expected


def test_what_differs_between_replicas_is_the_first_ones_in_an_update(many, execute):
    with many.scope():
        v = sg.Variable(0.0)

    def step():
        x = replica().replica_id_in_sync_group + 5.0
        many.extended.update(v, lambda v, x: v.assign(x), args=(x,))

    execute(lambda: many.run(step))
    assert {float(c) for c in v.values} == {5.0}


def test_update_returns_what_the_function_returns(strategy):
    with strategy.scope():
        v = sg.Variable(1.0)
        assert strategy.extended.update(v, lambda v, x: x, args=("text",)) == "text"
        results = strategy.extended.update(v, lambda v: v.assign_add(1.0).value(), group=False)
    assert [float(r) for r in results] == [2.0]


def test_colocate_vars_with(placed_strategy):
    with placed_strategy.scope():
        v = sg.Variable(1.0)
    with placed_strategy.extended.colocate_vars_with(v):
        w = sg.Variable(2.0)
    assert w.device == v.device
    assert placed_strategy.extended.value_container(w) is w
    with pytest.raises(ValueError, match="same strategy"):
        placed_strategy.extended.colocate_vars_with(sg.Variable(1.0)).__enter__()


def test_devices(strategy):
    extended = strategy.extended
    assert len(extended.worker_devices) == strategy.replica_group.local_size
    task = "/job:localhost/replica:0/task:0"
    resolver = strategy.cluster_resolver
    if IN_WORKERS:
        task = f"/job:worker/replica:0/task:{resolver.task_id}"
    assert all(d.startswith(f"{task}/device:CPU:") for d in extended.worker_devices)
    assert extended.parameter_devices
    uses_cluster = isinstance(
        strategy,
        (sg.distribute.ParameterServerStrategy, sg.distribute.MultiWorkerMirroredStrategy),
    )
    assert (strategy.cluster_resolver is not None) == uses_cluster
    assert not extended.experimental_require_static_shapes


def test_local_results(strategy):
    n = strategy.num_replicas_in_sync
    assert strategy.experimental_local_results(5) == (5,)
    assert strategy.experimental_local_results("x") == ("x",)
    nested = strategy.run(lambda: {"a": replica().replica_id_in_sync_group})
    results = components(strategy, nested)
    assert [int(r["a"]) for r in results] == list(range(n))


def test_distribute_values_from_function(strategy):
    n = strategy.num_replicas_in_sync

    def value_fn(context):
        assert context.num_replicas_in_sync == n
        return {"id": context.replica_id_in_sync_group, "array": np.ones(2, np.int64)}

    value = strategy.experimental_distribute_values_from_function(value_fn)
    wrapped = not isinstance(strategy, sg.distribute.OneDeviceStrategy)
    if strategy is not sg.distribute.get_strategy() and wrapped:
        assert isinstance(value["id"], sg.distribute.PerReplica)
    else:
        assert float(value["array"].sum()) == 2.0
    assert [int(v) for v in components(strategy, value["id"])] == list(range(n))


@one_process("makes a strategy on devices of its own")
def test_distribute_values_of_different_structures():
    with pytest.raises(ValueError, match="same structure"):
        sg.distribute.MirroredStrategy(
            ["CPU:0", "CPU:1"]
        ).experimental_distribute_values_from_function(lambda c: [1] * c.replica_id_in_sync_group)


@one_process("only the leader of several workers writes")
def test_who_trains_alone_writes_checkpoints_and_summaries(strategy):
    assert strategy.extended.should_checkpoint
    assert strategy.extended.should_save_summary


def test_the_all_reduce_that_the_model_garden_calls(strategy, execute):
    options = sg.distribute.experimental.CommunicationOptions(bytes_per_pack=0)

    def step():
        all_reduce = strategy.extended._replica_ctx_all_reduce
        return all_reduce(sg.distribute.ReduceOp.SUM, [jnp.ones(2), jnp.ones(())], options)

    vectors, numbers = execute(lambda: strategy.run(step))
    n = strategy.num_replicas_in_sync
    assert all(float(part) == n for part in components(strategy, numbers))
    assert all(part.tolist() == [n, n] for part in components(strategy, vectors))
