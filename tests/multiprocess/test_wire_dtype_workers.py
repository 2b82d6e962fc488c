"""``CommunicationOptions(dtype=...)`` of a strategy: gradients are rounded on their way, nothing else."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem.testing import run_cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]

FINE = np.float32(1.0 + 2.0**-20)
"""1 in bfloat16."""


def train(shard_state):
    options = sg.distribute.experimental.CommunicationOptions(dtype="bfloat16")
    strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        weights = sg.Variable(jnp.zeros(4096))
        mean = sg.Variable(0.0, aggregation=sg.VariableAggregation.MEAN)
        seen = sg.metrics.Sum()
        optimizer = sg.train.Optimizer(optax.sgd(1.0), shard_state=shard_state)

    def replica_fn():
        replica = sg.distribute.get_replica_context()
        _, gradients = sg.value_and_grad(lambda: jnp.sum(weights * FINE), [weights])()
        optimizer.apply_gradients(zip(gradients, [weights], strict=True))
        mean.assign(FINE)
        seen.update_state(FINE)
        return replica.all_reduce("SUM", FINE), FINE * jnp.ones(())

    def step():
        summed, own = strategy.run(replica_fn)
        return summed, strategy.reduce("SUM", own, axis=None)

    found = []
    for execute in [step, sg.function(step)] if not shard_state else [sg.function(step)]:
        weights.assign(jnp.zeros(4096))
        seen.reset_state()
        summed, reduced = execute()
        found.append(
            {
                "weights": sorted(set(np.asarray(weights.read_value()).tolist())),
                "all_reduce": float(strategy.experimental_local_results(summed)[0]),
                "reduce": float(reduced),
                "variable": float(mean.read_value()),
                "metric": float(seen.result()),
            }
        )
    return found


@pytest.mark.parametrize("shard_state", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_only_gradients_of_a_strategy_are_rounded(shard_state):
    rounded = {"weights": [-2.0], "all_reduce": 2.0}
    exact = {"reduce": 2 * FINE, "variable": FINE, "metric": 2 * FINE}
    for found in run_cluster(train, 2, (shard_state,)):
        assert found == [rounded | exact] * (1 if shard_state else 2)
