"""Callbacks of compiled steps whose devices hold every thread that XLA has for them."""

import os
import subprocess
import sys

import pytest

STEPS = """
import sys, tempfile
import jax, jax.numpy as jnp, numpy as np
import stratagem as sg

num_devices, num_steps = map(int, sys.argv[1:])
strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
writer = sg.summary.create_file_writer(tempfile.mkdtemp())
shape = jax.ShapeDtypeStruct((1, 256, 256, 1), jnp.float32)
looks = 0

def look(x):
    global looks
    looks += 1
    return np.asarray(x)

def in_replica(number):
    replica = sg.distribute.get_replica_context()
    with sg.summary.record_if(number % 100 == 0):
        x = jnp.full(shape.shape, number, shape.dtype)
        sg.summary.image("image", x, step=number)
        jax.debug.callback(look, x)
        x = jax.pure_callback(look, shape, x)
        x = x + replica.all_reduce("MEAN", x[0, 0, 0])
        jax.lax.cond(number % 50 == 0, lambda: jax.debug.print("{}", x.mean()), lambda: None)
        x = jax.experimental.io_callback(look, shape, x)
        sg.summary.histogram("rows", x, step=number)
    return replica.all_gather(x[0, 0, 0], axis=0).sum() / num_devices

@sg.function
def step(number):
    return strategy.reduce("MEAN", strategy.run(in_replica, args=(number,)), axis=None)

with writer.as_default():
    for number in range(num_steps):
        assert float(step(jnp.int32(number))) == 2 * number
print("done", looks == 3 * num_steps * num_devices)
"""


JAX_IN_CALLBACKS = """
import sys
import jax, jax.numpy as jnp, numpy as np
import stratagem as sg

num_devices, num_steps = map(int, sys.argv[1:])
strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
shape = jax.ShapeDtypeStruct((160, 161), jnp.float32)
room = np.zeros(160 * 161 * 4 + 64, np.uint8)
start = -room.ctypes.data % 64 + 4  # XLA cannot take it over as it is
ones = room[start : start + 160 * 161 * 4].view(np.float32).reshape(shape.shape)
ones[...] = 1
table = jnp.ones(shape.shape)
add = jax.jit(jnp.add)
everywhere = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.array(jax.devices("cpu")[:num_devices]), "x"), jax.sharding.PartitionSpec("x")
)
last = jax.devices("cpu")[num_devices - 1]
sizes = []

WAYS = [
    lambda x: jnp.asarray(ones) * x,
    lambda x: jnp.array(ones) * x,
    lambda x: jax.device_put(ones) * x,
    lambda x: jax.device_put(ones, last),
    lambda x: jax.device_put(ones, everywhere),
    lambda x: jax.device_put(x, last),
    lambda x: add(x, ones) - table,
    lambda x: jnp.tanh(x @ x.T).sum() + x,
    lambda x: jnp.asarray(ones.T).T,
    lambda x: jax.nn.relu(ones),
]

def of(number, x):
    return WAYS[int(number) % len(WAYS)](x)

def returned(number, x):
    of(number, x).block_until_ready()
    return jnp.asarray(ones)

def looked_at(number, x):
    sizes.append(np.asarray(of(number, x)).size)

def in_replica(number):
    replica = sg.distribute.get_replica_context()
    x = jnp.zeros(shape.shape) + replica.all_reduce("SUM", number * 0)
    x = x + jax.pure_callback(returned, shape, number, x)
    x = x * replica.all_reduce("MEAN", x[0, 0])
    jax.debug.callback(looked_at, number + 1, x)
    x = x + replica.all_reduce("MEAN", x[0, 1])
    x = x + jax.experimental.io_callback(returned, shape, number + 2, x)
    return replica.all_reduce("MEAN", x.mean())

@sg.function
def step(number):
    return strategy.run(in_replica, args=(number,))

for number in range(num_steps):
    result = strategy.experimental_local_results(step(jnp.float32(number)))
    assert [float(each) for each in result] == [3.0] * num_devices, result
print("done", sizes == [160 * 161] * (num_steps * num_devices))
"""


def run(num_devices, num_steps, timeout, program=STEPS):
    # XLA has as many threads for programs as processors, or devices if these are more.
    environment = {**os.environ, "PJRT_NPROC": "1"}
    environment.pop("XLA_FLAGS", None)
    return subprocess.run(
        [sys.executable, "-c", program, str(num_devices), str(num_steps)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize(
    ("num_devices", "num_steps"),
    [
        (2, 100),
        *(pytest.param(n, 10_000, marks=pytest.mark.slow) for n in (1, 2, 4, 8)),
    ],
)
@pytest.mark.parametrize("program", [STEPS, JAX_IN_CALLBACKS], ids=["looks", "computes"])
@pytest.mark.timeout(1800)
def test_callbacks_beside_collectives_are_never_stuck(program, num_devices, num_steps):
    finished = run(num_devices, num_steps, 60 + num_steps // 6, program)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "done True"


SLOW_CALLBACK = """
import threading, sys
import jax, jax.numpy as jnp, numpy as np
import stratagem as sg

strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def hold(replica):
    if replica == 0:
        threading.Event().wait(float(sys.argv[1]))
    return np.float32(1.0)

def in_replica():
    replica = sg.distribute.get_replica_context()
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    held = jax.pure_callback(hold, shape, replica.replica_id_in_sync_group)
    return replica.all_reduce("SUM", held)

print(*strategy.experimental_local_results(sg.function(lambda: strategy.run(in_replica))()))
"""
LIMIT = "--xla_cpu_collective_call_terminate_timeout_seconds"


@pytest.mark.parametrize(
    ("flags", "seconds", "survives"),
    [
        (f"{LIMIT}=1 --xla_cpu_collective_call_warn_stuck_timeout_seconds=1", 20, False),
        pytest.param("", 70, True, marks=pytest.mark.slow),
        pytest.param("--xla_cpu_enable_fast_math=false", 70, True, marks=pytest.mark.slow),
    ],
    ids=["users_own_limit", "no_flags", "other_flags"],
)
def test_a_collective_may_wait_for_long_unless_the_user_says_otherwise(flags, seconds, survives):
    """XLA's own limits are 20 and 40 seconds."""
    finished = subprocess.run(
        [sys.executable, "-c", SLOW_CALLBACK, str(seconds)],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=seconds + 60,
    )
    assert (finished.stdout == "2.0 2.0\n") is survives, finished.stderr
