"""Layouts of real TPUs, described by stand-ins that have what ``jax.Device`` has."""

import dataclasses

import jax
import numpy as np
import pytest

from stratagem._src.core.errors import DeviceError
from stratagem.tpu.experimental import DeviceAssignment, Topology


@dataclasses.dataclass(frozen=True)
class Core:
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    process_index: int = 0
    slice_index: int = 0


def v3_8():
    return [Core((x, y, 0), core) for y in (0, 1) for x in (0, 1) for core in (0, 1)]


def v4_two_hosts():
    """Eight chips of one core each; JAX lists the second host first here."""
    return [Core((x, y, z), process_index=z) for z in (1, 0) for y in (0, 1) for x in (0, 1)]


def test_coordinates_are_chip_and_core():
    topology = Topology(v3_8())
    assert topology.mesh_shape.tolist() == [2, 2, 1, 2]
    assert (topology.num_tasks, topology.num_tpus_per_task, topology.mesh_rank) == (1, 8, 4)
    assert topology.device_coordinates.shape == (1, 8, 4)
    assert topology.device_coordinates[0, 3].tolist() == [1, 0, 0, 1]
    assert topology.device_at([1, 0, 0, 1]) == Core((1, 0, 0), 1)
    assert topology.missing_devices.shape == (0, 4)


def test_hosts_come_one_after_the_other():
    topology = Topology(v4_two_hosts())
    assert (topology.num_tasks, topology.num_tpus_per_task) == (2, 4)
    assert topology.task_ordinal_at_coordinates((0, 1, 1, 0)) == 1
    assert topology.tpu_device_ordinal_at_coordinates((0, 1, 1, 0)) == 2


def test_coordinates_of_a_part_of_a_pod_count_from_zero():
    part = [Core((x, 4, 2)) for x in (2, 3)]
    assert Topology(part).mesh_shape.tolist() == [2, 1, 1, 1]


def test_slices_lie_next_to_each_other():
    two = [Core((x, 0, 0), slice_index=s, process_index=s) for s in (0, 1) for x in (0, 1)]
    topology = Topology(two)
    assert topology.mesh_shape.tolist() == [4, 1, 1, 1]
    assert topology.device_at((3, 0, 0, 0)) == two[3]


@pytest.mark.parametrize(
    ("count", "shape"),
    [(1, [1, 1, 1, 1]), (2, [1, 1, 1, 2]), (6, [3, 1, 1, 2]), (8, [1, 2, 2, 2])],
)
def test_devices_without_coordinates_are_laid_out_in_pairs(count, shape):
    topology = Topology(jax.devices("cpu")[:count])
    assert topology.mesh_shape.tolist() == shape
    assert [topology.device_at(at) for at in topology.device_coordinates[0]] == list(
        jax.devices("cpu")[:count]
    )


def test_names_of_devices():
    topology = Topology(jax.devices("cpu")[:4])
    at = (0, 0, 1, 1)
    assert topology.tpu_device_name_at_coordinates(at).endswith("/task:0/device:CPU:3")
    assert topology.tpu_device_name_at_coordinates(at, job="x").startswith("/job:x/replica:0/")
    assert topology.cpu_device_name_at_coordinates(at).endswith("/task:0/device:CPU:0")


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        ([], "at least one device"),
        ([Core((0, 0, 0)), Core((0, 0, 0))], "coordinates of its own"),
        (
            [Core((x, 0, 0), process_index=int(x == 2)) for x in range(3)],
            r"same number of cores, got \[2, 1\]",
        ),
    ],
)
def test_wrong_devices(cores, said):
    with pytest.raises(DeviceError, match=said):
        Topology(cores)


def test_a_core_that_does_not_exist():
    with pytest.raises(ValueError, match=r"no core at \(2, 0, 0, 0\).*\[2, 2, 1, 2\]"):
        Topology(v3_8()).device_at((2, 0, 0, 0))


def test_replicas_get_neighbouring_cores():
    assignment = DeviceAssignment.build(
        Topology(v3_8()), computation_shape=[1, 2, 1, 2], num_replicas=2
    )
    assert (assignment.num_replicas, assignment.num_cores_per_replica) == (2, 4)
    assert assignment.core_assignment.shape == (2, 4, 4)
    assert {core.coords[0] for core in assignment.devices[0]} == {0}
    assert {core.coords[0] for core in assignment.devices[1]} == {1}
    assert assignment.coordinates(1, 3) == (1, 1, 0, 1)


def test_a_stride_leaves_cores_between_to_other_replicas():
    row = Topology([Core((x, 0, 0)) for x in range(4)])
    assignment = DeviceAssignment.build(
        row, computation_shape=[2, 1, 1, 1], computation_stride=[2, 1, 1, 1], num_replicas=2
    )
    assert assignment.core_assignment[:, :, 0].tolist() == [[0, 2], [1, 3]]


def test_replicas_come_host_by_host():
    assignment = DeviceAssignment.build(
        Topology(v4_two_hosts()), computation_shape=[2, 1, 1, 1], num_replicas=4
    )
    assert [cores[0].process_index for cores in assignment.devices] == [0, 0, 1, 1]
    assert assignment.lookup_replicas(task_id=1, logical_core=1) == [2, 3]
    assert assignment.tpu_ordinal(replica=3, logical_core=1) == 3
    with pytest.raises(DeviceError, match="host 2"):
        assignment.lookup_replicas(2, 0)


def test_missing_cores_are_left_out():
    without_one = [core for core in v3_8() if core != Core((0, 1, 0), 1)]
    topology = Topology(without_one)
    assert topology.missing_devices.tolist() == [[0, 1, 0, 1]]
    assignment = DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=3)
    assert [0, 1] not in [core.coords[:2] for cores in assignment.devices for core in cores]
    with pytest.raises(DeviceError, match="but only 3 fit"):
        DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=4)


def test_one_core_of_a_tpu():
    topology = Topology(jax.devices("cpu"))
    assignment = DeviceAssignment(topology, [[[0, 0, 0, 0]]])
    assert assignment.devices == ((jax.devices("cpu")[0],),)
    assert assignment.topology is topology
    assert assignment.tpu_device().endswith("device:CPU:0")
    assert assignment.host_device(job="x") == "/job:x/replica:0/task:0/device:CPU:0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"computation_shape": [1, 1, 2]}, "computation_shape must have 4"),
        ({"computation_shape": [1, 1, 0, 1]}, "integers >= 1"),
        ({"computation_stride": [1, 1, 1.5, 1]}, "computation_stride"),
        ({"computation_shape": [1, 1, 2, 2]}, r"\[1, 1, 2, 2\].*\[2, 2, 1, 2\], but only 0 fit"),
        ({"num_replicas": 9}, "9 replica.*but only 8 fit"),
        ({"num_replicas": 0}, "at least 1"),
    ],
)
def test_assignments_that_do_not_fit(arguments, said):
    with pytest.raises(DeviceError, match=said):
        DeviceAssignment.build(Topology(v3_8()), **arguments)


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        ([[0, 0, 0, 0]], r"shape \(replicas, cores of each replica, 4\)"),
        (np.zeros((1, 1, 3), int), "shape"),
        ([[[0, 0, 0, 2]]], "no core at"),
        ([[[0, 0, 0, 0], [0, 0, 0, 0]]], "assigned once"),
    ],
)
def test_wrong_cores(cores, said):
    with pytest.raises(DeviceError, match=said):
        DeviceAssignment(Topology(v3_8()), cores)


def test_something_else_than_a_topology():
    with pytest.raises(DeviceError, match="needs a Topology"):
        DeviceAssignment(b"", [[[0, 0, 0, 0]]])
    with pytest.raises(DeviceError, match="needs a Topology"):
        DeviceAssignment.build(b"")
