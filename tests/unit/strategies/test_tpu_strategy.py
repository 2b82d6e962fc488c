"""With virtual CPU devices as TPU cores, unless ``STRATAGEM_TEST_TPU_PLATFORM`` says otherwise."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import stratagem as sg
from stratagem._src.cluster import CloudError
from stratagem._src.core.errors import ContextError, DeviceError, ShapeMismatchError
from stratagem._src.mesh.logical_devices import check_partition, group_of_assignment, prime_factors
from stratagem.tpu.experimental import DeviceAssignment, initialize_tpu_system

PLATFORM = os.environ.get("STRATAGEM_TEST_TPU_PLATFORM", "cpu")


@pytest.fixture
def resolver():
    return sg.distribute.cluster_resolver.TPUClusterResolver("local", platform=PLATFORM)


@pytest.fixture
def make(resolver):
    def make(num_replicas, shape, **options):
        topology = initialize_tpu_system(resolver)
        assignment = DeviceAssignment.build(topology, shape, num_replicas=num_replicas)
        return sg.distribute.TPUStrategy(
            resolver, experimental_device_assignment=assignment, **options
        )

    return make


def compiled(strategy, fn, *args):
    return sg.function(lambda *args: strategy.run(fn, args=args))(*args)


def numbers(strategy, value):
    return [float(x) for x in strategy.experimental_local_results(value)]


# --- replicas of one core -------------------------------------------------------------------------


def test_every_core_is_a_replica(resolver):
    strategy = sg.distribute.TPUStrategy(resolver)
    assert strategy.num_replicas_in_sync == len(jax.devices(PLATFORM))
    assert strategy.cluster_resolver is resolver
    extended = strategy.extended
    assert (extended.num_logical_devices, extended.num_hosts) == (1, 1)
    assert extended.num_replicas_per_host == strategy.num_replicas_in_sync


def test_replicas_of_one_core_take_the_path_of_mirrored_strategy(make):
    devices = jax.devices(PLATFORM)[:2]
    group = make(2, [1, 1, 1, 1]).replica_group
    assert group is sg.distribute.MirroredStrategy(devices).replica_group


def test_layouts_of_one_core_change_nothing(make):
    strategy = make(2, [1, 1, 1, 1])

    def step(x):
        x = strategy.experimental_split_to_logical_devices(x, [1, 1])
        x = strategy.experimental_assign_to_logical_device(x, 0)
        return strategy.experimental_replicate_to_logical_devices(x).sum()

    assert numbers(strategy, compiled(strategy, step, jnp.ones((2, 3)))) == [6.0, 6.0]
    assert numbers(strategy, strategy.run(step, args=(jnp.ones((2, 3)),))) == [6.0, 6.0]


def test_the_older_signature(resolver):
    topology = initialize_tpu_system(resolver)
    one_core = DeviceAssignment(topology, [[[0, 0, 0, 0]]])
    strategy = sg.distribute.experimental.TPUStrategy(resolver, device_assignment=one_core)
    assert isinstance(strategy, sg.distribute.TPUStrategy)
    assert strategy.num_replicas_in_sync == 1
    assert float(strategy.experimental_run_v2(lambda x: x * 2, args=(jnp.float32(3),))) == 6.0


@pytest.mark.skipif(jax.default_backend() == "tpu", reason="this machine has a TPU")
def test_without_a_tpu():
    with pytest.raises(CloudError, match="must find a TPU"):
        sg.distribute.TPUStrategy()
    with pytest.raises(CloudError, match="must find a TPU"):
        initialize_tpu_system()


# --- replicas of several cores --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_replicas", "shape", "num_parts", "part"),
    [
        (2, [1, 1, 1, 2], [1, 2, 1], (4, 2, 8)),
        (2, [1, 1, 2, 2], [2, 1, 2], (2, 4, 4)),
        (1, [1, 2, 2, 2], [1, 2, 4], (4, 2, 2)),
        (1, [1, 2, 2, 2], [1, 1, 8], (4, 4, 1)),
    ],
)
def test_a_split_array_is_computed_in_parts(make, num_replicas, shape, num_parts, part):
    strategy = make(num_replicas, shape)
    x = jnp.arange(128.0).reshape(4, 4, 8) / 100
    layouts = []

    def step(x):
        y = jnp.tanh(strategy.experimental_split_to_logical_devices(x, num_parts))
        jax.debug.inspect_array_sharding(y, callback=layouts.append)
        return y

    result = compiled(strategy, step, x)
    assert [layout.shard_shape(x.shape) for layout in layouts] == [part]
    for value in strategy.experimental_local_results(result):
        np.testing.assert_allclose(value, np.tanh(x), rtol=1e-6)


@pytest.mark.parametrize("annotation", ["replicate", "assign"])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_other_layouts_make_an_array_whole_again(make, num_replicas, annotation):
    strategy = make(num_replicas, [1, 1, 1, 2])
    layouts = []

    def step(x):
        y = strategy.experimental_split_to_logical_devices(x, [2])
        if annotation == "replicate":
            y = strategy.experimental_replicate_to_logical_devices(y)
        else:
            y = strategy.experimental_assign_to_logical_device(y, 1)
        z = y * 2
        jax.debug.inspect_array_sharding(z, callback=layouts.append)
        return z.sum()

    assert numbers(strategy, compiled(strategy, step, jnp.ones(4))) == [8.0] * num_replicas
    assert [layout.shard_shape((4,)) for layout in layouts] == [(4,)]


@pytest.mark.parametrize("num_replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
def test_training_with_a_split_layer(make, num_replicas, dtype):
    """The same steps eagerly, compiled with layouts, and in NumPy."""
    strategy = make(num_replicas, [1, 1, 1, 2])
    inputs = np.random.default_rng(0).normal(size=(num_replicas, 4, 6)).astype(np.float32)
    x = strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(inputs[ctx.replica_id_in_sync_group], dtype)
    )

    def train(call):
        with strategy.scope():
            w = sg.Variable(jnp.ones((6, 4), dtype), aggregation=sg.VariableAggregation.MEAN)

        def step(x):
            def loss():
                hidden = x @ strategy.experimental_split_to_logical_devices(w, [1, 2])
                return (hidden**2).mean()

            value, gradient = sg.value_and_grad(loss, w)()
            w.assign_sub(0.1 * gradient)
            return value

        for _ in range(3):
            call(step, x)
        return np.asarray(w.numpy(), np.float32)

    weights = np.ones((6, 4), np.float32)
    for _ in range(3):
        weights -= 0.1 * np.mean([x.T @ (x @ weights) / 8 for x in inputs], axis=0)
    tolerance = 1e-5 if dtype == jnp.float32 else 0.05
    for call in (
        lambda step, x: strategy.run(step, args=(x,)),
        lambda step, x: compiled(strategy, step, x),
    ):
        np.testing.assert_allclose(train(call), weights, rtol=tolerance, atol=tolerance)


def test_variables_created_in_a_step_with_layouts(make):
    strategy = make(2, [1, 1, 1, 2])
    made = []

    def step(x):
        if not made:
            made.append(sg.Variable(jnp.ones(4), aggregation=sg.VariableAggregation.SUM))
        made[0].assign_add(strategy.experimental_split_to_logical_devices(x, [2]))

    compiled(strategy, step, jnp.ones(4))
    assert len(made) == 1
    assert made[0].numpy().tolist() == [3.0] * 4


def test_layouts_inside_a_loop_and_a_gradient_of_collectives(make):
    strategy = make(2, [1, 1, 1, 2])
    x = strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.full(4, ctx.replica_id_in_sync_group + 1.0)
    )

    def step(x):
        def loss(x):
            def body(total, _):
                return total + strategy.experimental_split_to_logical_devices(x, [2]), None

            total, _ = jax.lax.scan(body, jnp.zeros(4), None, length=3)
            replica = sg.distribute.get_replica_context()
            return (replica.all_reduce("SUM", total) ** 2).sum()

        return jax.grad(loss)(x)

    for value in compiled(strategy, step, x).values:
        # The total is 3 * (1 + 2) in both replicas, whose losses are summed.
        np.testing.assert_allclose(value, np.full(4, 2 * 2 * 9 * 3.0))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_layouts_in_functions_that_jax_has_traced_before(make, num_replicas):
    strategy = make(num_replicas, [1, 1, 1, 2])

    @jax.jit
    def inner(x):
        return strategy.experimental_split_to_logical_devices(x, [2]) * 2

    def body(total, x):
        return total + strategy.experimental_split_to_logical_devices(x, [2]), None

    def step(x, layouts=None):
        y = inner(x) + jax.lax.scan(body, jnp.zeros(4), jnp.ones((3, 4)))[0]
        if layouts is not None:
            jax.debug.inspect_array_sharding(y, callback=layouts.append)
        return y.sum()

    x = jnp.ones(4)
    assert numbers(strategy, strategy.run(step, args=(x,))) == [20.0] * num_replicas
    for _ in range(2):
        layouts = []
        result = compiled(strategy, lambda x, seen=layouts: step(x, seen), x)
        assert numbers(strategy, result) == [20.0] * num_replicas
        assert [layout.shard_shape((4,)) for layout in layouts] == [(2,)]
    assert numbers(strategy, strategy.run(step, args=(x,))) == [20.0] * num_replicas


def test_a_step_without_layouts_is_free_of_their_limits(make):
    strategy = make(2, [1, 1, 1, 2])
    strategy.run(lambda: strategy.experimental_replicate_to_logical_devices(jnp.ones(2)))

    def step(x):
        y = jax.lax.psum(x, "replica")
        return y + io_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32))

    result = compiled(strategy, step, jnp.ones((), jnp.bfloat16))
    assert numbers(strategy, result) == [3.0, 3.0]


def test_an_eager_replica_runs_on_its_first_logical_device(make):
    strategy = make(2, [1, 1, 1, 2])

    def step(x):
        y = strategy.experimental_split_to_logical_devices(x, [2]) + 1
        assert y.devices() == {jax.devices(PLATFORM)[2 * int(replica_id())]}
        return y.sum()

    def replica_id():
        return sg.distribute.get_replica_context().replica_id_in_sync_group

    assert numbers(strategy, strategy.run(step, args=(jnp.ones(4),))) == [8.0, 8.0]


def test_variables_are_on_every_core(make):
    strategy = make(2, [1, 1, 1, 2])
    with strategy.scope():
        v = sg.Variable(jnp.ones(3))
    compiled(strategy, lambda: v.read_value())
    assert v.snapshot().devices() == set(jax.devices(PLATFORM)[:4])
    assert len(v.values) == 2


def test_the_same_assignment_gives_the_same_group(make):
    assert make(2, [1, 1, 1, 2]).replica_group is make(2, [1, 1, 1, 2]).replica_group
    assert make(2, [1, 1, 1, 2]).replica_group is not make(2, [1, 1, 1, 1]).replica_group


# --- wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize("execute", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("annotate", "said"),
    [
        (lambda s, x: s.experimental_split_to_logical_devices(x, [2]), "one number for each dim"),
        (
            lambda s, x: s.experimental_split_to_logical_devices(x, [1, 4]),
            r"the 2 logical.*\[1, 4\]",
        ),
        (lambda s, x: s.experimental_split_to_logical_devices(x, [-1, -2]), "must be >= 1"),
        (lambda s, x: s.experimental_split_to_logical_devices(x, [1, 2]), "dim 1 of size 3 in 2"),
        (lambda s, x: s.experimental_assign_to_logical_device(x, 2), "from 0 to 1.*got 2"),
        (lambda s, x: s.experimental_assign_to_logical_device(x, -1), "got -1"),
    ],
)
def test_layouts_that_do_not_fit(make, execute, annotate, said):
    strategy = make(2, [1, 1, 1, 2])
    x = jnp.ones((4, 3))
    call = compiled if execute == "compiled" else lambda s, fn, x: s.run(fn, args=(x,))
    with pytest.raises(ValueError, match=said):
        call(strategy, lambda x: annotate(strategy, x), x)


def test_one_logical_device_is_no_choice_with_spmd_partitioning(make):
    strategy = make(1, [1, 1, 1, 2], experimental_spmd_xla_partitioning=True)
    with pytest.raises(ValueError, match="experimental_spmd_xla_partitioning=True"):
        strategy.run(lambda: strategy.experimental_assign_to_logical_device(jnp.ones(2), 0))


def test_layouts_belong_into_a_replica(make):
    strategy = make(2, [1, 1, 1, 2])
    with pytest.raises(ContextError, match="inside the function given to run"):
        strategy.experimental_split_to_logical_devices(jnp.ones(2), [2])
    per_replica = strategy.run(lambda: jnp.ones(2))
    with strategy.scope(), pytest.raises(ValueError, match="got a PerReplica"):
        strategy.experimental_replicate_to_logical_devices(per_replica)


def test_callbacks_beside_layouts_are_refused(make):
    strategy = make(2, [1, 1, 1, 2])
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def step(x):
        y = strategy.experimental_split_to_logical_devices(x, [2])
        return y + io_callback(lambda: np.float32(1), shape)

    with pytest.raises(DeviceError, match="cannot contain io_callback"):
        compiled(strategy, step, jnp.ones(2))


@pytest.mark.skipif(PLATFORM != "cpu", reason="a limit of XLA's CPU compiler")
def test_what_would_abort_the_cpu_compiler_is_refused(make):
    strategy = make(2, [1, 1, 1, 2])

    def step(x):
        y = strategy.experimental_split_to_logical_devices(x, [2])
        return jax.lax.cond(y.sum() > 0, lambda: jax.lax.psum(y, "replica"), lambda: y)

    with pytest.raises(DeviceError, match="psum of bfloat16"):
        compiled(strategy, step, jnp.ones(2, jnp.bfloat16))


def test_wrong_arguments(resolver):
    with pytest.raises(DeviceError, match="must be a DeviceAssignment"):
        sg.distribute.TPUStrategy(resolver, experimental_device_assignment=[[0]])
    cores = jax.devices(PLATFORM)
    with pytest.raises(DeviceError, match=r"same number of devices.*\[1, 2\]"):
        group_of_assignment([cores[:1], cores[1:3]])
    with pytest.raises(DeviceError, match="in one replica once"):
        group_of_assignment([cores[:2], cores[1:3]])


def test_xla_options(make):
    strategy = make(1, [1, 1, 1, 2])
    options = sg.distribute.RunOptions(experimental_xla_options=sg.tpu.XLAOptions())
    assert float(strategy.run(lambda: jnp.ones(()), options=options)) == 1.0
    with pytest.raises(ValueError, match="use_spmd_for_xla_partitioning=False"):
        sg.distribute.RunOptions(experimental_xla_options=sg.tpu.XLAOptions(False))
    with pytest.raises(ValueError, match=r"must be a tpu\.XLAOptions"):
        sg.distribute.RunOptions(experimental_xla_options={})


# --- the TPU system -------------------------------------------------------------------------------


def test_connecting_to_one_host_changes_nothing(resolver):
    sg.config.experimental_connect_to_cluster(resolver)
    assert not jax.distributed.is_initialized()
    spec = sg.train.ClusterSpec({"worker": ["a:1"]})
    with pytest.raises(ValueError, match="SimpleClusterResolver"):
        sg.config.experimental_connect_to_cluster(spec)


def test_the_system_cannot_be_started_inside_a_function(resolver):
    for call in (initialize_tpu_system, sg.tpu.experimental.shutdown_tpu_system):
        with pytest.raises(RuntimeError, match="inside a compiled function"):
            sg.function(lambda call=call: call(resolver))()


def test_a_strategy_survives_the_shutdown(make, resolver):
    strategy = make(2, [1, 1, 1, 2])
    with strategy.scope():
        v = sg.Variable(1.0)
    step = sg.function(lambda: strategy.run(lambda: v * 2))
    assert numbers(strategy, step()) == [2.0, 2.0]
    sg.tpu.experimental.shutdown_tpu_system(resolver)
    assert numbers(strategy, step()) == [2.0, 2.0]


# --- arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "factors"), [(1, ()), (2, (2,)), (12, (2, 2, 3)), (35, (5, 7)), (97, (97,))]
)
def test_prime_factors(number, factors):
    assert prime_factors(number) == factors


@pytest.mark.parametrize(
    ("shape", "num_parts", "num_devices", "fits"),
    [
        ((), [], 1, True),
        ((), [], 2, False),
        ((4, 6), [2, 3], 6, True),
        ((4, 6), [3, 2], 6, False),
        ((0, 2), [2, 1], 2, True),
        ((4,), [0], 0, False),
    ],
)
def test_partitions(shape, num_parts, num_devices, fits):
    if fits:
        check_partition(shape, num_parts, num_devices)
    else:
        with pytest.raises(ShapeMismatchError):
            check_partition(shape, num_parts, num_devices)
