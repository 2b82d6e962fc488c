import json
import os

import pytest

from stratagem._src.cluster import (
    EnvironmentVariableError,
    JaxClusterResolver,
    KubernetesClusterResolver,
    OpenMPIClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
    TPUClusterResolver,
    resolve_cluster,
)

TF_CONFIG = {
    "TF_CONFIG": json.dumps(
        {"cluster": {"worker": ["w0:1", "w1:1"]}, "task": {"type": "worker", "index": 1}}
    )
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "job",
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
JAX = {"JAX_COORDINATOR_ADDRESS": "node0:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t0,t1"}
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "my-train-job-1",
}
IN_ORDER = [
    (TF_CONFIG, TFConfigClusterResolver, "TF_CONFIG describes a cluster"),
    (OPEN_MPI, OpenMPIClusterResolver, "mpirun"),
    (TORCHRUN, TorchrunClusterResolver, "torchrun"),
    (JAX, JaxClusterResolver, "JAX_NUM_PROCESSES"),
    (SLURM, SlurmClusterResolver, "srun"),
    (TPU, TPUClusterResolver, "TPU_WORKER_HOSTNAMES"),
    (KUBERNETES, KubernetesClusterResolver, "indexed Kubernetes job my-train-job"),
]


@pytest.fixture
def set_variables(monkeypatch):
    def set_variables(*variables):
        for name, value in [item for some in variables for item in some.items()]:
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(("variables", "resolver_class", "why"), IN_ORDER)
def test_each_launcher_is_recognised(set_variables, variables, resolver_class, why):
    set_variables(variables)
    found = resolve_cluster()

    assert type(found.resolver) is resolver_class
    assert why in found.reason
    assert (found.resolver.task_type, found.resolver.task_id) == ("worker", 1)


@pytest.mark.parametrize("position", range(len(IN_ORDER) - 1))
def test_the_first_that_fits_is_taken(set_variables, position):
    set_variables(*[variables for variables, _, _ in IN_ORDER[position:]])

    assert type(resolve_cluster().resolver) is IN_ORDER[position][1]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"TF_CONFIG": "{}"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"MASTER_ADDR": "node0", "MASTER_PORT": "1"},
        {"JAX_COORDINATOR_ADDRESS": "node0:1"},
        {"SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n1", "SLURM_NTASKS": "4"},
        {"TPU_NAME": "pod"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "web-1"},
        {**KUBERNETES, "HOSTNAME": "my-train-job-2"},
        {**KUBERNETES, "HOSTNAME": "job-²", "JOB_COMPLETION_INDEX": "²"},
    ],
)
def test_otherwise_there_is_none(set_variables, variables):
    set_variables(variables)
    found = resolve_cluster()

    assert found.resolver is None
    assert "neither TF_CONFIG nor" in found.reason


def test_a_malformed_tf_config_is_not_passed_over(set_variables):
    set_variables({"TF_CONFIG": "{"}, SLURM)

    with pytest.raises(EnvironmentVariableError, match="TF_CONFIG"):
        resolve_cluster()


@pytest.mark.parametrize(("variables", "resolver_class", "why"), IN_ORDER[:-1])
def test_the_environment_is_never_written(set_variables, variables, resolver_class, why):
    set_variables(variables, {"SLURM_GPUS_ON_NODE": "8"})
    before = dict(os.environ)

    resolver = resolve_cluster().resolver
    _ = (resolver.coordinator_address, resolver.num_processes, resolver.process_id)
    _ = (resolver.local_device_ids, resolver.master(), resolver.num_accelerators())

    assert dict(os.environ) == before
