"""Workers whose step has collectives of all kinds, small and large; each prints what it got.

Prints ``exchange NAME``, how arrays travel, and then ``results DIGEST`` if all numbers are right. The
digest is equal on workers that have the same bits.
"""

import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import stratagem as sg
from stratagem._src.collective_backends.shared_memory import ffi_collectives

LARGE = 300_000
HUGE = 1_200_000  # 4.8 MB: a second thread sends
HALF = sg.distribute.experimental.CommunicationOptions(dtype="bfloat16")
strategy = sg.distribute.MultiWorkerMirroredStrategy()
rank, count = strategy.cluster_resolver.process_id, strategy.num_replicas_in_sync
rendezvous = ffi_collectives._rendezvous
print("exchange", "XLA" if rendezvous is None else type(rendezvous.backend).__name__, flush=True)


def replica_step(x):
    context = sg.distribute.get_replica_context()
    rows = jnp.outer(jnp.arange(1.0, count + 1), x)

    def add_sum(_, value):
        return value + jax.lax.psum(value, "replica")

    return {
        "sum": context.all_reduce("SUM", x),
        "large": context.all_reduce("MEAN", jnp.sin(jnp.arange(LARGE) * x[0])),
        "huge": context.all_reduce("SUM", jnp.arange(HUGE) % 1000 * x[0]),
        "half": context.all_reduce("SUM", jnp.sin(jnp.arange(LARGE) * x[0]), HALF),
        "few": context.all_reduce("SUM", x, HALF),
        "int": context.all_reduce("SUM", x.astype(jnp.int32)),
        "most": context.all_reduce("MAX", x),
        "gathered": context.all_gather(x, axis=0),
        "scattered": jax.lax.psum_scatter(rows, "replica", scatter_dimension=0, tiled=True)[0],
        "sent": jax.lax.ppermute(x, "replica", [(i, (i + 1) % count) for i in range(count)]),
        "loop": jax.lax.fori_loop(0, 3, add_sum, x),
    }


step = sg.function(lambda x: strategy.run(replica_step, args=(x,)))
xs = [np.array([1.0 + i, 2.0 + i], np.float32) for i in range(count)]
x = strategy.experimental_distribute_values_from_function(
    lambda context: xs[context.replica_id_in_sync_group]
)
total = sum(xs)
looped = list(xs)
for _ in range(3):
    looped = [value + sum(looped) for value in looped]
expected = {
    "sum": total,
    "large": np.mean([np.sin(np.arange(LARGE) * np.float32(x[0])) for x in xs], axis=0),
    "huge": np.arange(HUGE) % 1000 * total[0],
    "half": np.sum([np.sin(np.arange(LARGE) * np.float32(x[0])) for x in xs], axis=0),
    "few": total,
    "int": total,
    "most": np.max(xs, axis=0),
    "gathered": np.concatenate(xs),
    "scattered": (rank + 1) * total,
    "sent": xs[rank - 1],
    "loop": looped[rank],
}
for _ in range(int(sys.argv[1])):
    results = {
        name: np.asarray(strategy.experimental_local_results(value)[0])
        for name, value in step(x).items()
    }
    for name, value in results.items():
        if name == "half":  # each of a few roundings is off by 2 ** -9 at most
            assert np.abs(value - expected[name]).max() <= count * 2.0**-7
            continue
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=2e-2, err_msg=name)
same = [
    results[name].tobytes()
    for name in ("sum", "large", "huge", "half", "few", "int", "most", "gathered")
]
print("results", hashlib.sha256(b"".join(same)).hexdigest(), flush=True)
