"""Steps compiled, but not run, by the compiler for TPUs, which needs no TPU: ``pip install libtpu``."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)

PROGRAM = """
import sys
import jax
import jax.numpy as jnp
from jax.experimental import topologies
import stratagem as sg

name, shape, num_replicas = sys.argv[1], [int(x) for x in sys.argv[2].split(",")], int(sys.argv[3])
tpu = sg.tpu.experimental
description = topologies.get_topology_desc(platform="tpu", topology_name=name)
assignment = tpu.DeviceAssignment.build(
    tpu.Topology(description.devices), shape, num_replicas=num_replicas
)
strategy = sg.distribute.TPUStrategy(experimental_device_assignment=assignment)
group = strategy.replica_group
num_parts = [1, strategy.extended.num_logical_devices]

def step(x, w):
    def loss(w):
        return (x @ strategy.experimental_split_to_logical_devices(w, num_parts)).mean()

    return sg.distribute.get_replica_context().all_reduce("SUM", jax.grad(loss)(w))

def program(x, w):
    x = sg.distribute.PerReplica.from_global(group, x, scalar=False)
    return strategy.run(step, args=(x, w)).global_array(group)

x = jax.ShapeDtypeStruct((num_replicas * 256, 512), jnp.bfloat16, sharding=group.sharded)
w = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16, sharding=group.replicated)
print(jax.jit(program).lower(x, w).compile().as_text())
"""


@pytest.mark.parametrize(
    ("name", "shape", "num_replicas", "columns"),
    [
        ("v5e:2x4", "1,1,1,1", 8, 1024),
        ("v5e:2x4", "2,2,1,1", 2, 256),
        ("v4:2x2x1", "1,1,1,2", 4, 512),
    ],
)
def test_gradients_are_reduced_in_parts(name, shape, num_replicas, columns):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, shape, str(num_replicas)],
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reductions = re.findall(r"= bf16\[([\d,]+)\]\S* all-reduce\(", done.stdout)
    assert reductions == [f"512,{columns}"]
