import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replicas import components, one_process

import stratagem as sg

pytestmark = pytest.mark.about("collectives")


def replica():
    return sg.distribute.get_replica_context()


def run_all(strategy, execute, fn):
    """Returns each replica's result of ``fn(replica_id)``."""
    n = strategy.num_replicas_in_sync
    result = execute(lambda: strategy.run(lambda: fn(replica().replica_id_in_sync_group)))
    parts = components(strategy, result)
    assert len(parts) == n
    return parts


EXPECTED = {"SUM": np.sum, "MEAN": np.mean, "MIN": np.min, "MAX": np.max}


@pytest.mark.spread("op", "dtype")
@pytest.mark.parametrize("op", EXPECTED)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, jnp.bfloat16])
def test_all_reduce(strategy, execute, op, dtype):
    n = strategy.num_replicas_in_sync
    parts = run_all(
        strategy,
        execute,
        lambda i: replica().all_reduce(op, jnp.array([1, 4], dtype) * (i + 1).astype(dtype)),
    )
    values = np.stack([np.array([1.0, 4.0]) * (i + 1) for i in range(n)])
    for part in parts:
        np.testing.assert_allclose(
            np.asarray(part, np.float32), EXPECTED[op](values, axis=0), rtol=1e-2
        )
        if op == "MEAN" and dtype == jnp.int32:
            assert jnp.issubdtype(part.dtype, jnp.floating)
        else:
            assert part.dtype == dtype


def test_all_reduce_of_nested_mixed_dtypes_numbers_and_nothing(strategy, execute):
    n = strategy.num_replicas_in_sync

    def step(i):
        value = {"a": [jnp.ones(3), jnp.int32(2)], "b": (1.5, True), "c": [], "d": None}
        return replica().all_reduce("sum", value)

    for part in run_all(strategy, execute, step):
        np.testing.assert_array_equal(part["a"][0], np.full(3, n))
        assert int(part["a"][1]) == 2 * n
        assert float(part["b"][0]) == 1.5 * n
        assert int(part["b"][1]) == n
        assert part["c"] == []
        assert part["d"] is None


def test_all_reduce_of_booleans_means_any_and_all(strategy, execute):
    n = strategy.num_replicas_in_sync
    parts = run_all(
        strategy,
        execute,
        lambda i: (replica().all_reduce("MAX", i == 0), replica().all_reduce("MIN", i == 0)),
    )
    for any_, all_ in parts:
        assert any_.dtype == all_.dtype == jnp.bool_
        assert bool(any_)
        assert bool(all_) is (n == 1)


def test_all_reduce_of_one_captured_array_sums_over_replicas(strategy, execute):
    captured = jnp.float32(3)
    for part in run_all(strategy, execute, lambda i: replica().all_reduce("SUM", captured)):
        assert float(part) == 3 * strategy.num_replicas_in_sync


@pytest.mark.spread("axis")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_all_gather(strategy, execute, axis):
    n = strategy.num_replicas_in_sync

    def step(i):
        return replica().all_gather({"x": jnp.full((2, 3), 1.0) * i}, axis=axis)["x"]

    expected = np.concatenate([np.full((2, 3), i) for i in range(n)], axis=axis)
    for part in run_all(strategy, execute, step):
        np.testing.assert_array_equal(part, expected)


def test_all_gather_of_a_scalar_needs_an_axis(strategy, execute):
    with pytest.raises(ValueError, match="axis"):
        run_all(strategy, execute, lambda i: replica().all_gather(1.0 * i, axis=0))


@pytest.mark.layout
def test_all_gather_of_unequal_sizes_runs_eagerly(many):
    def step():
        i = int(replica().replica_id_in_sync_group)
        return replica().all_gather(jnp.arange(i, dtype=jnp.float32), axis=0)

    expected = np.concatenate([np.arange(i) for i in range(many.num_replicas_in_sync)])
    for part in components(many, many.run(step)):
        np.testing.assert_array_equal(part, expected)


def test_gradient_of_all_reduce_is_the_same_all_reduce(strategy, execute):
    n = strategy.num_replicas_in_sync

    def step(i):
        weight = (i + 1).astype(jnp.float32)

        def loss(x, op):
            return weight * replica().all_reduce(op, x * x)

        x = jnp.float32(3)
        return jax.grad(loss)(x, "SUM"), jax.grad(loss)(x, "MEAN")

    total = sum(i + 1 for i in range(n))
    for part in run_all(strategy, execute, step):
        assert float(part[0]) == pytest.approx(total * 6)
        assert float(part[1]) == pytest.approx(total / n * 6)


def test_gradient_of_max_goes_to_the_replica_that_holds_it(strategy, execute):
    n = strategy.num_replicas_in_sync

    def step(i):
        return jax.grad(lambda x: replica().all_reduce("MAX", x))(i.astype(jnp.float32))

    parts = [float(p) for p in run_all(strategy, execute, step)]
    assert parts == [0.0] * (n - 1) + [pytest.approx(n)]


def test_gradient_of_all_gather_is_summed_and_sliced(strategy, execute):
    n = strategy.num_replicas_in_sync

    def step(i):
        weights = jnp.arange(1.0, 2 * n + 1) * (i + 1)
        return jax.grad(lambda x: jnp.sum(weights * replica().all_gather(x, axis=0)))(jnp.ones(2))

    total = sum(i + 1 for i in range(n))
    for i, part in enumerate(run_all(strategy, execute, step)):
        np.testing.assert_allclose(part, total * np.arange(2 * i + 1, 2 * i + 3), rtol=1e-6)


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_indexed_slices_are_reduced_without_becoming_dense(strategy, execute, op):
    n = strategy.num_replicas_in_sync

    def step(i):
        slices = sg.IndexedSlices(jnp.ones((2, 3)) * (i + 1), jnp.array([0, 1]) + i, (100, 3))
        return replica().all_reduce(op, slices)

    dense = np.zeros((100, 3))
    for i in range(n):
        dense[i] += i + 1
        dense[i + 1] += i + 1
    dense = dense / n if op == "MEAN" else dense
    for part in run_all(strategy, execute, step):
        assert isinstance(part, sg.IndexedSlices)
        assert part.values.shape == (2 * n, 3)
        np.testing.assert_allclose(part.to_dense(), dense)


def test_indexed_slices_have_no_minimum(many, execute):
    slices = sg.IndexedSlices(jnp.ones((1, 2)), jnp.array([0]))
    with pytest.raises(ValueError, match="SUM or MEAN"):
        execute(lambda: many.run(lambda: replica().all_reduce("MIN", slices)))


def test_collectives_inside_conditions_and_nested_functions(many):
    """Allowed in a compiled step wherever every replica takes part."""

    @sg.function
    def inner(x):
        return replica().all_reduce("SUM", x)

    def step(x):
        doubled = jax.lax.cond(True, lambda: replica().all_reduce("SUM", x), lambda: x)
        scanned, _ = jax.lax.scan(
            lambda c, _: (replica().all_reduce("MEAN", c + 1), None), x, None, length=3
        )
        return doubled, scanned, inner(x)

    doubled, scanned, nested = sg.function(lambda: many.run(step, args=(jnp.float32(1),)))()
    n = many.num_replicas_in_sync
    assert float(doubled.values[0]) == n
    assert float(scanned.values[0]) == 4
    assert float(nested.values[0]) == n


def test_packing_does_not_change_results(many, execute):
    options = sg.distribute.experimental.CommunicationOptions(bytes_per_pack=16)
    n = many.num_replicas_in_sync

    def step(i):
        tree = [jnp.arange(k, dtype=jnp.float32) + i for k in range(6)] + [jnp.int32(1) * i]
        return replica().all_reduce("SUM", tree, options=options)

    for part in run_all(many, execute, step):
        for k in range(6):
            np.testing.assert_allclose(part[k], n * np.arange(k) + sum(range(n)))
        assert int(part[6]) == sum(range(n))


@pytest.mark.layout
def test_merge_call_runs_once_with_merged_arguments(strategy, execute):
    n = strategy.num_replicas_in_sync
    calls = []

    def merge(merge_strategy, per_replica, same, *, keyword):
        calls.append(same)
        assert merge_strategy is strategy
        assert sg.distribute.in_cross_replica_context()
        assert keyword == 7
        total = merge_strategy.reduce("SUM", per_replica, axis=None)
        return total, per_replica, "done"

    def step(i):
        return replica().merge_call(merge, args=(i * 1.0, "same"), kwargs={"keyword": 7})

    for index, (total, own, text) in enumerate(
        (t, o, "done") for t, o, *_ in run_all(strategy, execute, step)
    ):
        assert float(total) == sum(range(n))
        assert float(own) == index
        assert text == "done"
    assert calls == ["same"]


@one_process("makes a strategy on devices of its own")
def test_reduction_to_one_device_honours_its_arguments():
    seen = []

    def accumulate(values):
        seen.append([v.device for v in values if not isinstance(v, jax.core.Tracer)])
        return functools.reduce(jnp.add, values) * 10

    ops = sg.distribute.ReductionToOneDevice("CPU:3", accumulation_fn=accumulate)
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)], ops)
    per_replica = strategy.run(lambda: replica().replica_id_in_sync_group * 1.0)
    assert float(strategy.reduce("SUM", per_replica, axis=None)) == 60
    assert float(strategy.reduce("MEAN", per_replica, axis=None)) == 15
    assert seen[0] == [jax.devices()[3]] * 4
    compiled = sg.function(lambda x: strategy.reduce("SUM", x, axis=None))
    assert float(compiled(per_replica)) == 60


@one_process("makes a strategy on devices of its own")
def test_reduction_to_a_device_outside_of_the_replicas():
    ops = sg.distribute.ReductionToOneDevice("CPU:5")
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], ops)
    per_replica = strategy.run(lambda: jnp.ones(2))
    np.testing.assert_array_equal(strategy.reduce("SUM", per_replica, axis=None), [2, 2])
    with pytest.raises(ValueError, match="replica's device"):
        sg.function(lambda x: strategy.reduce("SUM", x, axis=None))(per_replica)


def _program_text(ops):
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)], ops)
    jitted = jax.jit(lambda x: strategy.reduce("SUM", strategy.run(lambda x: x, (x,)), axis=None))
    return jitted.lower(jnp.ones(8)).as_text()


@one_process("makes a strategy on devices of its own")
def test_the_three_ops_move_data_differently_in_a_program():
    nccl = _program_text(sg.distribute.NcclAllReduce())
    one = _program_text(sg.distribute.ReductionToOneDevice())
    hierarchical = _program_text(sg.distribute.HierarchicalCopyAllReduce())
    assert "all_reduce" in nccl
    assert "collective_permute" not in nccl
    assert "all_reduce" not in one
    assert one.count("stablehlo.collective_permute") == 6
    assert "all_reduce" not in hierarchical
    assert hierarchical.count("stablehlo.collective_permute") == 4


@one_process("makes a strategy on devices of its own")
def test_number_of_packs_shows_in_the_program():
    def count(ops):
        strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], ops)
        arrays = [jnp.ones(4)] * 6
        jitted = jax.jit(
            lambda xs: strategy.run(lambda xs: replica().all_reduce("SUM", xs), args=(xs,))
        )
        return jitted.lower(arrays).as_text().count('"stablehlo.all_reduce"')

    assert count(sg.distribute.NcclAllReduce(num_packs=1)) == 1
    assert count(sg.distribute.NcclAllReduce(num_packs=3)) == 3
    assert count(sg.distribute.NcclAllReduce(num_packs=0)) == 6


class _Median(sg.distribute.CrossDeviceOps):
    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        assert isinstance(per_replica_value, sg.distribute.PerReplica)
        return jnp.median(jnp.stack(per_replica_value.values), axis=0)


@one_process("makes a strategy on devices of its own")
def test_cross_device_ops_of_the_users_own(execute):
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(3)], _Median())
    values = [5.0, 1.0, 2.0]
    per_replica = strategy.experimental_distribute_values_from_function(
        lambda ctx: values[ctx.replica_id_in_sync_group]
    )
    assert float(execute(lambda x: strategy.reduce("SUM", x, axis=None), per_replica)) == 2
    inside = execute(
        lambda x: strategy.run(lambda x: replica().all_reduce("SUM", x), args=(x,)), per_replica
    )
    assert [float(v) for v in inside.values] == [2, 2, 2]


@pytest.mark.not_on("parameter_server2", reason="a server's variable is on no device of a replica")
def test_broadcast(many):
    ops = many.extended.cross_device_ops
    with many.scope():
        v = sg.Variable([1.0, 2.0])
    sent = ops.broadcast(jnp.ones(3), v)
    if isinstance(many, sg.distribute.CentralStorageStrategy):
        assert sent.device == v.parameter_device
    else:
        assert isinstance(sent, sg.distribute.Mirrored)
        assert [c.device for c in sent.values] == list(many.replica_group.local_devices)


@one_process("makes a strategy on devices of its own")
def test_wrong_cross_device_ops():
    with pytest.raises(ValueError, match="CrossDeviceOps"):
        sg.distribute.MirroredStrategy(["CPU:0"], cross_device_ops="nccl")
    with pytest.raises(ValueError, match="num_packs"):
        sg.distribute.NcclAllReduce(num_packs=-1)
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], sg.distribute.CrossDeviceOps())
    ones = strategy.run(lambda: jnp.ones(1))
    with pytest.raises(NotImplementedError, match="reduce_implementation"):
        strategy.reduce("SUM", ones, axis=None)


def test_merge_call_may_return_per_replica_values_of_its_own(many, execute_ragged):
    def merge(strategy, x):
        return sg.distribute.PerReplica([v * 10 for v in x.values])

    parts = run_all(many, execute_ragged, lambda i: replica().merge_call(merge, args=(i * 1.0,)))
    assert [float(p) for p in parts] == [10.0 * i for i in range(many.num_replicas_in_sync)]


def test_gradients_through_a_reduction_with_counts(strategy, execute):
    def step(i):
        def loss(x):
            total, count = replica().all_reduce("SUM", [x * x, jnp.int32(1)])
            return total / count

        return jax.grad(loss)(jnp.float32(3))

    for part in run_all(strategy, execute, step):
        assert float(part) == pytest.approx(6)


@one_process("workers that merge differently are one of the faults of a cluster")
def test_replicas_that_merge_with_different_functions(many):
    def step():
        if int(replica().replica_id_in_sync_group) == 0:
            return replica().merge_call(lambda strategy: 1)
        return replica().merge_call(
            lambda strategy: 2
        )  # fmt: skip

    with pytest.raises(RuntimeError, match="same merge_call"):
        many.run(step)


def test_run_inside_a_compiled_merge_call(many):
    def step():
        return replica().merge_call(lambda strategy: strategy.run(lambda: jnp.ones(1)))

    with pytest.raises(RuntimeError, match="merge_call inside a compiled step"):
        sg.function(lambda: many.run(step))()
