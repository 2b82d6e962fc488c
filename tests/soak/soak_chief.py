"""The coordinator of a soak: marks items, one function for each, and repeats what was lost.

Arguments: the cluster as JSON, the directory for checkpoints, seconds to run. Prints JSON for every round.

Every item has a row of a table that is spread over both servers, and a function that sets it to a number
that is known: so the end shows whether each was done, and a function that runs twice does no harm. A server
that is lost takes rows with it: after each round the chief looks which ones, and does them again.
"""

import faulthandler
import json
import signal
import sys
import time

import numpy as np
import psutil

import stratagem as sg

ROWS = 2000
ITEMS_PER_ROUND = 200
ROUNDS_PER_CHECKPOINT = 2


def value_of(items, cycle):
    """What the rows of items hold when they were done in a cycle through the table."""
    return (np.asarray(items) % 997 + 1 + 1000.0 * cycle).astype(np.float32)


def main():
    faulthandler.register(signal.SIGUSR1)
    cluster, directory, seconds = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(sg.train.ClusterSpec(cluster))
    strategy = sg.distribute.ParameterServerStrategy(
        resolver, sg.distribute.partitioners.FixedShardsPartitioner(2), resume=True
    )
    coordinator = sg.distribute.coordinator.ClusterCoordinator(
        strategy, worker_timeout=3.0, patience=120.0
    )
    with strategy.scope():
        table = sg.Variable(np.zeros(ROWS, np.float32), name="table")
        runs = sg.Variable(0, name="runs")
        rounds = sg.Variable(0, name="rounds")
    checkpoint = sg.train.Checkpoint(table=table, runs=runs, rounds=rounds)
    manager = sg.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    if not strategy.resumed and manager.restore_or_initialize() is None:
        manager.save()
        manager.sync()
    coordinator.recover_servers_from(manager)

    def mark(items, values):
        table.scatter_max(sg.IndexedSlices(values, items))
        runs.assign_add(1)

    def retried(do):
        while True:
            try:
                return do()
            except sg.errors.PSUnavailableError:
                coordinator.join()

    def unmarked(number):
        """Returns the items up to this round that are not done in this cycle, and which cycle it is."""
        cycle, place = divmod(number * ITEMS_PER_ROUND, ROWS)
        items, found = np.arange(ROWS), retried(table.numpy)
        now, before = value_of(items, cycle), value_of(items, cycle - 1) if cycle else 0 * items
        # Rows to come may have been marked by a function that was taken for lost, never by anything else.
        assert np.all((found == now) | (found == before)), found
        return items[(found != now) & (items < place + ITEMS_PER_ROUND)], cycle

    def do_round(number):
        """Marks the items of a round; returns whether that is done, and was not undone by a recovery."""
        before = len(coordinator.recoveries)
        missing, cycle = unmarked(number)
        for item in missing:
            coordinator.schedule(mark, args=(np.array([item]), value_of([item], cycle)))
        coordinator.join()
        if len(coordinator.recoveries) > before or unmarked(number)[0].size:
            return False
        retried(lambda: rounds.assign(number + 1))
        return len(coordinator.recoveries) == before

    process, deadline = psutil.Process(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        number = int(retried(rounds.numpy))
        before = len(coordinator.recoveries)
        is_done = do_round(number)
        if is_done and (number + 1) % ROUNDS_PER_CHECKPOINT == 0:
            retried(lambda: (manager.save(), manager.sync()))
        lost = [r.num_functions for r in coordinator.recoveries[before:]]
        say(round=number, lost=lost, pid=process.pid, rss=process.memory_info().rss)
    number = int(retried(rounds.numpy)) - 1
    missing, _ = unmarked(number)
    say(end=True, rounds=number + 1, missing=missing.tolist(), runs=int(retried(runs.numpy)))


def say(**what):
    print(json.dumps(what), flush=True)


main()
