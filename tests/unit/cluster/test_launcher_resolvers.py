"""torchrun, JAX and Open MPI: launchers that tell only the coordinator's address."""

import os
import pickle
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.cluster import (
    ClusterSpec,
    ClusterSpecError,
    EnvironmentVariableError,
    JaxClusterResolver,
    MissingVariableError,
    OpenMPIClusterResolver,
    TaskError,
    TorchrunClusterResolver,
    UnknownAddressesError,
)

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
JAX = {
    "JAX_COORDINATOR_ADDRESS": "node0:29500",
    "JAX_NUM_PROCESSES": "8",
    "JAX_PROCESS_ID": "3",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "PMIX_NAMESPACE": "1531576321",
}
LAUNCHERS = [
    (TorchrunClusterResolver, TORCHRUN),
    (JaxClusterResolver, JAX),
    (OpenMPIClusterResolver, OPEN_MPI),
]


@pytest.fixture
def set_variables(monkeypatch):
    def set_variables(variables, **changes):
        for variable, value in {**variables, **changes}.items():
            if value is None:
                monkeypatch.delenv(variable, raising=False)
            else:
                monkeypatch.setenv(variable, value)

    return set_variables


@pytest.mark.parametrize(("resolver_class", "variables"), LAUNCHERS)
def test_every_process_is_a_worker_with_its_rank(set_variables, resolver_class, variables):
    set_variables(variables)
    resolver = resolver_class()

    assert (resolver.task_type, resolver.task_id) == ("worker", 3)
    assert (resolver.process_id, resolver.num_processes) == (3, 8)


@pytest.mark.parametrize(("resolver_class", "variables"), LAUNCHERS)
def test_there_is_no_spec_while_addresses_are_unknown(set_variables, resolver_class, variables):
    set_variables(variables)
    resolver = resolver_class()

    with pytest.raises(UnknownAddressesError, match=r"8 processes .*coordinator_address") as caught:
        resolver.cluster_spec()
    assert resolver.coordinator_address in str(caught.value)
    assert resolver.master() == ""
    assert resolver.master("worker", 0, "grpc") == f"grpc://{resolver.coordinator_address}"


@pytest.mark.parametrize(
    ("resolver_class", "variables"),
    [
        (TorchrunClusterResolver, {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}),
        (JaxClusterResolver, {**JAX, "JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "1"}),
    ],
)
def test_a_single_process_has_a_spec(set_variables, resolver_class, variables):
    set_variables(variables)

    assert resolver_class().cluster_spec() == ClusterSpec({"worker": ["node0:29500"]})


@pytest.mark.parametrize(("resolver_class", "variables"), LAUNCHERS)
def test_the_task_can_be_set_within_the_size(set_variables, resolver_class, variables):
    set_variables(variables)
    resolver = resolver_class()

    resolver.task_id = 7
    assert resolver.process_id == 7
    resolver.task_id = 8
    with pytest.raises(TaskError, match=r"below num_processes \(8\), got 8"):
        _ = resolver.process_id


@pytest.mark.parametrize(
    ("resolver_class", "variables", "variable", "value", "said"),
    [
        (TorchrunClusterResolver, TORCHRUN, "RANK", "x", "rank, as a whole number.*holds 'x'"),
        (TorchrunClusterResolver, TORCHRUN, "RANK", "8", "below 8"),
        (TorchrunClusterResolver, TORCHRUN, "WORLD_SIZE", "0", "at least 1"),
        (TorchrunClusterResolver, TORCHRUN, "MASTER_PORT", "70000", "a port"),
        (TorchrunClusterResolver, TORCHRUN, "MASTER_ADDR", "a b", "host of process 0"),
        (JaxClusterResolver, JAX, "JAX_PROCESS_ID", "-1", "whole number"),
        (JaxClusterResolver, JAX, "JAX_NUM_PROCESSES", "4.0", "number of processes"),
        (JaxClusterResolver, JAX, "JAX_COORDINATOR_ADDRESS", "node0", "host:port"),
        (JaxClusterResolver, JAX, "JAX_LOCAL_DEVICE_IDS", "0,a", "separated by commas"),
        (OpenMPIClusterResolver, OPEN_MPI, "OMPI_COMM_WORLD_RANK", "9", "below 8"),
        (OpenMPIClusterResolver, OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "", "mpirun"),
        (OpenMPIClusterResolver, OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK", "2", "below 2"),
        (OpenMPIClusterResolver, OPEN_MPI, "OMPI_MCA_orte_hnp_uri", "nothing", "of mpirun"),
    ],
)
def test_a_wrong_variable_is_named(set_variables, resolver_class, variables, variable, value, said):
    set_variables(variables, **{variable: value})
    resolver = resolver_class()

    with pytest.raises(EnvironmentVariableError, match=f"^{variable} must hold .*{said}"):
        _ = (resolver.process_id, resolver.coordinator_address, resolver.local_device_ids)


@pytest.mark.parametrize(
    ("resolver_class", "variables", "variable"),
    [
        *[(TorchrunClusterResolver, TORCHRUN, variable) for variable in TORCHRUN],
        *[(JaxClusterResolver, JAX, variable) for variable in JAX],
        (OpenMPIClusterResolver, OPEN_MPI, "OMPI_COMM_WORLD_RANK"),
        (OpenMPIClusterResolver, OPEN_MPI, "OMPI_COMM_WORLD_SIZE"),
        (OpenMPIClusterResolver, OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK"),
        (OpenMPIClusterResolver, OPEN_MPI, "OMPI_MCA_orte_hnp_uri"),
    ],
)
def test_a_missing_variable_is_named(set_variables, resolver_class, variables, variable):
    set_variables(variables, **{variable: None})
    resolver = resolver_class()

    with pytest.raises(
        MissingVariableError, match=f"^{variable} must hold .* is not set"
    ) as caught:
        _ = (resolver.process_id, resolver.coordinator_address, resolver.local_device_ids)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("changes", "address"),
    [
        ({}, "node0:29500"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, "node0:29500"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, "node0:29501"),
        ({"MASTER_ADDR": "fe80::1"}, "[fe80::1]:29500"),
    ],
)
def test_torchrun_coordinator(set_variables, changes, address):
    set_variables(TORCHRUN, **changes)

    assert TorchrunClusterResolver().coordinator_address == address
    assert TorchrunClusterResolver(2222).coordinator_address.endswith(":2222")


@pytest.mark.parametrize(
    ("local_rank", "local_size", "ids"),
    [(None, None, None), ("2", None, (2,)), ("2", "4", (2,)), ("0", "1", None)],
)
def test_torchrun_devices(set_variables, local_rank, local_size, ids):
    set_variables(TORCHRUN, LOCAL_RANK=local_rank, LOCAL_WORLD_SIZE=local_size)

    assert TorchrunClusterResolver().local_device_ids == ids


def test_jax_devices(set_variables):
    set_variables(JAX)
    assert JaxClusterResolver().local_device_ids is None
    set_variables(JAX, JAX_LOCAL_DEVICE_IDS="0, 3")
    assert JaxClusterResolver().local_device_ids == (0, 3)


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("1531576320.0;tcp://10.96.0.1,10.148.0.1,10.108.0.1:34911", "10.96.0.1"),
        ("1531576320.0;tcp://10.96.0.1:34911", "10.96.0.1"),
        ("3236233216.0;tcp://172.20.102.82:33559;tcp://172.40.102.82:33559", "172.20.102.82"),
        ("1314521088.0;tcp6://[fe80::b9b:ac5d,2620:10d::2]:43370", "[fe80::b9b:ac5d]"),
        ("1314521088.0;tcp6://[fe80::b9b:ac5d]:43370", "[fe80::b9b:ac5d]"),
    ],
)
def test_open_mpi_takes_the_host_of_mpirun(set_variables, uri, host):
    set_variables(OPEN_MPI, OMPI_MCA_orte_hnp_uri=uri, OMPI_COMM_WORLD_LOCAL_RANK="0")

    found, _, port = OpenMPIClusterResolver().coordinator_address.rpartition(":")
    assert found == host
    assert 61440 <= int(port) <= 65535


def test_open_mpi_on_one_machine_needs_no_address(set_variables):
    set_variables(OPEN_MPI, OMPI_MCA_orte_hnp_uri=None, OMPI_COMM_WORLD_LOCAL_SIZE="8")
    resolver = OpenMPIClusterResolver()

    assert resolver.coordinator_address.startswith("127.0.0.1:")
    assert resolver.local_device_ids == (1,)


def test_open_mpi_ranks_agree_on_the_port_and_jobs_do_not(set_variables):
    ports = set()
    for job in ("one", "two"):
        for rank in ("0", "7"):
            set_variables(OPEN_MPI, PMIX_NAMESPACE=job, OMPI_COMM_WORLD_RANK=rank)
            ports.add((job, OpenMPIClusterResolver().coordinator_address))

    assert len(ports) == 2
    assert len({address for _, address in ports}) == 2


def test_open_mpi_can_be_told_the_address(set_variables):
    set_variables(OPEN_MPI, OMPI_MCA_orte_hnp_uri=None, PMIX_NAMESPACE=None)

    assert OpenMPIClusterResolver("node0:1").coordinator_address == "node0:1"
    with pytest.raises(ClusterSpecError, match="host:port"):
        OpenMPIClusterResolver("node0")
    set_variables({}, OMPI_COMM_WORLD_LOCAL_SIZE="8")
    with pytest.raises(MissingVariableError, match="pass coordinator_address"):
        _ = OpenMPIClusterResolver().coordinator_address


values = st.one_of(
    st.integers(-2, 10).map(str),
    st.sampled_from(["", " 3 ", "node0", "node0:1", "[::1]:2", "1.0;tcp://a:1", "²", "9" * 5000]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12),
)


@pytest.mark.parametrize(("resolver_class", "variables"), LAUNCHERS)
@given(data=st.data())
def test_any_values_are_understood_or_rejected_by_name(resolver_class, variables, data):
    changed = {
        variable: data.draw(st.just(value) | values, label=variable)
        for variable, value in variables.items()
    }
    with mock.patch.dict(os.environ, changed):
        resolver = resolver_class()
        rejected = None
        try:
            number, size = resolver.process_id, resolver.num_processes
            _ = (resolver.coordinator_address, resolver.local_device_ids)
        except EnvironmentVariableError as error:
            rejected = str(error).split()[0]
    assert rejected in variables or 0 <= number < size
