"""Overhead of agreeing on input between workers: in a step, and by the number of workers.

The steps are those of two real workers, whose dataset is read and placed; nothing is computed. They are
compared with the same dataset in one process, where there is nobody to agree with. The comparisons are
those of many workers' lines to a real meeting point, all in one other process.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import time

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.control_plane.membership_client import MembershipClient
from stratagem._src.control_plane.membership_server_process import MembershipServerProcess
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials
from stratagem.testing import run_cluster

NUM_STEPS = 400
SECONDS = 60.0
STEPS_AT_ONCE = 8


def step_times(rounds: int, milliseconds: float) -> float:
    """Returns microseconds that this worker waits for the input of a step that takes so long."""
    import numpy as np

    import stratagem as sg

    strategy = sg.distribute.MultiWorkerMirroredStrategy()
    dataset = sg.data.Dataset.from_tensor_slices(np.zeros((NUM_STEPS * 16, 32), np.float32))
    distributed = strategy.experimental_distribute_dataset(dataset.batch(16))
    times = []
    for _ in range(rounds):
        waited = 0.0
        iterator = iter(distributed)
        next(iterator)
        for _ in range(NUM_STEPS - 1):
            start = time.perf_counter()
            next(iterator)
            waited += time.perf_counter() - start
            if milliseconds:
                time.sleep(milliseconds / 1e3)
        times.append(waited / (NUM_STEPS - 1) * 1e6)
    return statistics.median(times)


def comparison_times(num_workers: int, rounds: int) -> float:
    """Returns milliseconds of one comparison, from the first worker's part to the last one's answer."""
    credentials = Credentials(secret=os.environ["STRATAGEM_CLUSTER_SECRET"])
    with ReservedPorts(1) as ports:
        address = Address("127.0.0.1", next(iter(ports)))
        host = MembershipServerProcess(address, num_workers, credentials)
        clients: list[MembershipClient] = []
        try:
            for worker in range(num_workers):
                clients.append(MembershipClient(address, worker, num_workers, credentials, SECONDS))
            for client in clients:
                client.wait_for_change(lambda client=client: client.start is not None, SECONDS)
            times = []
            for number in range(rounds):
                key = f"input/{number}"
                start = time.perf_counter()
                for client in clients:
                    client.put(key, "batches", entries=[[[16, 32]]] * STEPS_AT_ONCE)
                for client in clients:
                    assert client.take(key, SECONDS) is not None
                times.append((time.perf_counter() - start) * 1e3)
            return statistics.median(times)
        finally:
            leave_together(clients)
            host.release()
            host.process.wait(SECONDS)


def leave_together(clients: list[MembershipClient]) -> None:
    background = Background("workers that leave")
    for client in clients:
        background.start(client.leave, "done", name="leave")
    background.join_or_abandon(SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ["STRATAGEM_CLUSTER_SECRET"] = secrets.token_hex(16)

    print(f"{'waiting for input':<28}{'1 worker':>10}{'2 workers':>11}")
    for milliseconds in (0.0, 2.0):
        args = (rounds, milliseconds)
        alone, together = (
            run_cluster(step_times, workers=workers, args=args, timeout=300)[0]
            for workers in (1, 2)
        )
        name = f"in a step of {milliseconds:.0f} ms"
        print(f"{name:<28}{alone:>7.0f} us{together:>8.0f} us", flush=True)

    print(f"\n{'workers':>8}{'a comparison':>15}{'for each worker':>18}{'in each step':>15}")
    for num_workers in (2, 8, 32, 128):
        milliseconds = comparison_times(num_workers, 10 * rounds)
        each = milliseconds / num_workers * 1e3
        step = milliseconds / STEPS_AT_ONCE
        print(
            f"{num_workers:>8}{milliseconds:>12.2f} ms{each:>15.0f} us{step:>12.2f} ms", flush=True
        )


if __name__ == "__main__":
    main()
