"""Cross-device ops by hand: what they take, and where they put the result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replicas import one_process

import stratagem as sg

ON_READ = sg.VariableSynchronization.ON_READ
SUM = sg.VariableAggregation.SUM

pytestmark = [
    pytest.mark.about("collectives"),
    one_process("cross-device ops by hand are of one process"),
]


@pytest.fixture(
    params=["NcclAllReduce", "HierarchicalCopyAllReduce", "ReductionToOneDevice"], scope="module"
)
def ops(request):
    return getattr(sg.distribute, request.param)()


def _numbers(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: ctx.replica_id_in_sync_group + 1.0
    )


def _variable(strategy, value, **options):
    with strategy.scope():
        return sg.Variable(value, **options)


@pytest.fixture
def mirrored():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _placed(value):
    """Returns the value and the devices that hold it."""
    parts = value.values if isinstance(value, sg.distribute.Mirrored) else [value]
    return {float(part) for part in parts}, [str(*part.devices()) for part in parts]


def test_destinations(mirrored, ops):
    numbers = _numbers(mirrored)
    both = [str(device) for device in jax.devices()[:2]]
    central = sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:1")
    cases = [
        ("CPU:2", [str(jax.devices()[2])]),
        ("/job:localhost/replica:0/task:0/device:CPU:1", both[1:]),
        (jax.devices()[1], both[1:]),
        (_variable(mirrored, 1.0), both),
        (_variable(mirrored, 1.0, synchronization=ON_READ), both),
        (_variable(central, 1.0), both[1:]),
        (sg.Variable(1.0), both[:1]),
        (jax.device_put(1.0, jax.devices()[1]), both[1:]),
        (numbers, both),
    ]
    for destinations, devices in cases:
        assert _placed(ops.reduce("SUM", numbers, destinations)) == ({3.0}, devices)
        assert _placed(ops.broadcast(jnp.float32(5.0), destinations)) == ({5.0}, devices)
    results = ops.batch_reduce("MEAN", [(numbers, destinations) for destinations, _ in cases])
    assert [_placed(result) for result in results] == [({1.5}, devices) for _, devices in cases]


def test_what_is_reduced(mirrored, ops):
    central = sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:1")
    cases = [
        (_variable(mirrored, 3.0), 6.0, 3.0),
        (_variable(mirrored, 3.0, synchronization=ON_READ, aggregation=SUM), 6.0, 3.0),
        (_variable(central, 3.0), 3.0, 3.0),
        (sg.Variable(3.0), 3.0, 3.0),
        (jnp.float32(3.0), 3.0, 3.0),
        (np.float32(3.0), 3.0, 3.0),
        (3.0, 3.0, 3.0),
    ]
    for destinations in ("CPU:1", _numbers(mirrored), _variable(mirrored, 1.0)):
        for value, total, mean in cases:
            assert _placed(ops.reduce("SUM", value, destinations))[0] == {total}
            assert _placed(ops.reduce("MEAN", value, destinations))[0] == {mean}
        pairs = [(value, destinations) for value, _, _ in cases]
        results = ops.batch_reduce("SUM", [*pairs, (_numbers(mirrored), destinations)])
        assert [_placed(r)[0].pop() for r in results] == [total for _, total, _ in cases] + [3.0]


def test_what_is_broadcast(mirrored, ops):
    both = [str(device) for device in jax.devices()[:2]]
    for value in (2.0, np.float32(2.0), sg.Variable(2.0), _variable(mirrored, 2.0)):
        assert _placed(ops.broadcast(value, _numbers(mirrored))) == ({2.0}, both)
        assert _placed(ops.broadcast(value, "CPU:1")) == ({2.0}, both[1:])
    with pytest.raises(ValueError, match="one value to all"):
        ops.broadcast(_numbers(mirrored), "CPU:1")


def test_in_a_compiled_function(mirrored, ops):
    v = _variable(mirrored, 4.0)

    @sg.function
    def step(numbers):
        total, mean = ops.batch_reduce("SUM", [(numbers, v), (v, "CPU:0")])
        return total + 0.0, mean, ops.reduce("MEAN", 7.0, numbers), ops.broadcast(v * 2.0, v)

    results = [float(result) for result in step(_numbers(mirrored))]
    assert results == [3.0, 8.0, 7.0, 8.0]


def test_wrong_destinations(mirrored, ops):
    numbers = _numbers(mirrored)
    for destinations in (["CPU:0", "CPU:1"], ("CPU:0",), mirrored, None, 3):
        with pytest.raises(ValueError, match="destinations must be"):
            ops.reduce("SUM", numbers, destinations)
        with pytest.raises(ValueError, match="destinations must be"):
            ops.broadcast(1.0, destinations)
        with pytest.raises(ValueError, match="destinations must be"):
            mirrored.extended.reduce_to("SUM", numbers, destinations)
    with pytest.raises(ValueError, match="must be pairs"):
        ops.batch_reduce("SUM", [numbers])
    assert ops.batch_reduce("SUM", []) == []


def test_reduce_to_a_variable_of_another_place(many, execute):
    """The result goes where the destinations are, whoever made them."""
    plain = sg.Variable(0.0)

    def total():
        numbers = many.run(
            lambda: sg.distribute.get_replica_context().replica_id_in_sync_group + 1.0
        )
        return many.extended.reduce_to("SUM", numbers, plain)

    result = execute(total)
    assert not isinstance(result, sg.distribute.Mirrored)
    assert float(result) == sum(range(1, many.num_replicas_in_sync + 1))
    plain.assign(result)


def test_an_op_without_an_implementation(mirrored):
    with pytest.raises(NotImplementedError, match="must implement reduce_implementation"):
        sg.distribute.CrossDeviceOps().reduce("SUM", _numbers(mirrored), "CPU:0")
