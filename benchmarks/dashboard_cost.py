"""What it costs a step that its process is observed.

The same compiled step is made twice: measured, while a reporter sends a sample every second to a collector
with a dashboard, and not measured. Rounds of both are interleaved; the ratio is that of the medians. The
process's time for samples in which nothing is trained is shown too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

import stratagem as sg
from stratagem._src.cluster.address import Address
from stratagem._src.observation.collector import Collector
from stratagem._src.observation.collector_address import CollectorAddress
from stratagem._src.observation.dashboard.dashboard_server import DashboardServer
from stratagem._src.observation.reporter import Reporter
from stratagem._src.transport import Credentials

SECRET = "a secret for this benchmark only"
CASES = {"tiny: 2 layers of 8": [8] * 2, "MLP: 4 layers of 256": [256] * 4}
ROWS = 32


def make_step(
    strategy: sg.distribute.Strategy, widths: list[int], *, reports: bool
) -> Callable[[], jax.Array]:
    with strategy.scope():
        layers = [
            sg.Variable(np.eye(w, dtype=np.float32), aggregation=sg.VariableAggregation.MEAN)
            for w in widths
        ]
    x = np.random.default_rng(0).normal(size=(ROWS, widths[0])).astype(np.float32)
    dataset = sg.data.Dataset.from_tensors(x).repeat()
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))

    def replica_step(x: jax.Array) -> jax.Array:
        def loss_fn() -> jax.Array:
            y = x
            for layer in layers:
                y = y @ layer
            return ((y - 1) ** 2).mean()

        loss, gradients = sg.value_and_grad(loss_fn, layers)()
        for layer, gradient in zip(layers, gradients, strict=True):
            layer.assign_sub(1e-3 * gradient)
        return loss

    step = sg.function(
        lambda x: strategy.reduce("MEAN", strategy.run(replica_step, args=(x,)), axis=None)
    )

    def run() -> jax.Array:
        loss = step(batch)
        if reports:
            sg.train.report(loss=loss)
        return loss

    for _ in range(5):
        run().block_until_ready()
    return run


def seconds_per_step(run: Callable[[], jax.Array], num_steps: int) -> float:
    began = time.perf_counter()
    for _ in range(num_steps):
        loss = run()
    loss.block_until_ready()
    return (time.perf_counter() - began) / num_steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a round")
    flags = parser.parse_args()
    sg.config.set_num_cpu_devices(2)
    print(f"{'step':<24} {'devices':>7} {'alone':>9} {'observed':>9} {'ratio':>6}")
    with (
        Collector("127.0.0.1", SECRET) as collector,
        DashboardServer(Address("127.0.0.1", 0), collector.view, SECRET),
    ):
        address = CollectorAddress(collector.address, Credentials(secret=SECRET), "worker 0")
        for num_devices in (1, 2):
            strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
            for name, widths in CASES.items():
                alone = make_step(strategy, widths, reports=False)
                reporter = Reporter(address)
                observed = make_step(strategy, widths, reports=True)
                num_steps = max(1, int(flags.seconds / seconds_per_step(alone, 20)))
                times: dict[str, list[float]] = {"alone": [], "observed": []}
                for _ in range(flags.rounds):
                    times["observed"].append(seconds_per_step(observed, num_steps))
                    times["alone"].append(seconds_per_step(alone, num_steps))
                reporter.close()
                a, b = (statistics.median(times[kind]) for kind in ("alone", "observed"))
                print(
                    f"{name:<24} {num_devices:>7} {a * 1e6:>6.0f} us {b * 1e6:>6.0f} us {b / a:>6.2f}"
                )
        reporter = Reporter(address, seconds=0.1)
        began, used = time.perf_counter(), time.process_time()
        time.sleep(3.0)
        num_samples = (time.perf_counter() - began) / 0.1
        used = (time.process_time() - used) / num_samples
        reporter.close()
        print(f"a sample, with its collector: {used * 1e3:.2f} ms of processor time, once a second")


if __name__ == "__main__":
    main()
