"""Checkpoints that parameter servers write and read themselves, each a process of its own."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from processes import poll
from server_cluster import ServerCluster

import stratagem as sg
from stratagem._src.checkpoint.format.reader import open_checkpoint
from stratagem._src.checkpoint.format.tensorstore_loader import tensorstore

MB = 1 << 20
ROWS, WIDTH = 1024, 128 << 10  # of half a MB each


@pytest.fixture
def cluster():
    cluster = ServerCluster(workers=1, ps=2)
    yield cluster
    cluster.close()


def make_table():
    """Returns a table, made by its servers, whose rows are full of their numbers."""
    return sg.Variable(
        sg.distribute.experimental.RowInitializer(
            lambda rows: np.repeat(rows.astype(np.float32), WIDTH).reshape(-1, WIDTH),
            shape=(ROWS, WIDTH),
        )
    )


class Peak:
    """The most memory that processes have had at a time since this was made, above what they had then."""

    def __init__(self, pids):
        self._before = {}
        for pid in pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
            self._before[pid] = self._most(pid)

    def megabytes(self):
        return [(self._most(pid) - before) / MB for pid, before in self._before.items()]

    @staticmethod
    def _most(pid):
        (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in x)
        return int(line.split()[1]) << 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_process_gathers_a_table(cluster, tmp_path):
    partitioner = sg.distribute.partitioners.FixedShardsPartitioner(2)
    with cluster.strategy(variable_partitioner=partitioner).scope():
        table = make_table()
    checkpoint = sg.train.Checkpoint(table=table)
    tensorstore()
    rows = [0, 1, ROWS // 2 - 1, ROWS // 2, ROWS - 1]
    peak = Peak([os.getpid(), *(cluster.pid("ps", index) for index in range(2))])
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    table.scatter_update(sg.IndexedSlices(np.zeros((5, WIDTH), np.float32), rows))
    checkpoint.restore(path).assert_consumed()
    # Each server has half of the table, 256 MB, and nobody gets as much again.
    here, *servers = peak.megabytes()
    assert here < 128
    assert max(servers) < 224, servers
    # Of each server's part and of this process's, which is the counter alone.
    sizes = [
        sum(file.stat().st_size for part in Path(path).glob(name) for file in part.rglob("*"))
        for name in ("ocdbt.process_ps_0_*", "ocdbt.process_ps_1_*", "ocdbt.process_0")
    ]
    assert min(sizes[:2]) >= 256 * MB
    assert sizes[2] < MB
    np.testing.assert_array_equal(table.sparse_read(rows)[:, 7], rows)

    # One is killed while it writes, or just before or after.
    checkpoint.save(tmp_path / "ckpt")
    cluster.kill("ps", 1)
    with contextlib.suppress(sg.errors.PSUnavailableError):
        checkpoint.sync()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names in (["ckpt-1"], ["ckpt-1", "ckpt-2"])
    for name in names:
        found = open_checkpoint(tmp_path / name).array("table")
        found.verify()
        assert (found.rows(ROWS // 2, ROWS // 2 + 1) == ROWS // 2).all()


# --- kills ------------------------------------------------------------------------------------------

CHIEF = textwrap.dedent("""
    import json, sys
    import numpy as np
    import stratagem as sg
    cluster, directory = json.loads(sys.argv[1]), sys.argv[2]
    resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(sg.train.ClusterSpec(cluster))
    partitioner = sg.distribute.partitioners.FixedShardsPartitioner(3)
    strategy = sg.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    with strategy.scope():
        table, count = sg.Variable(np.zeros((5000, 1000), np.float32)), sg.Variable(0)
    checkpoint = sg.train.Checkpoint(table=table, count=count)
    manager = sg.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    manager.restore_or_initialize()
    while True:
        assert (table.numpy() == int(count)).all()
        table.assign(np.full((5000, 1000), int(count) + 1, np.float32))
        count.assign_add(1)
        manager.save()
        manager.sync()
        print(int(count), flush=True)
""")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_chiefs_that_are_killed_while_servers_write(cluster, tmp_path):
    """Servers may still write for a chief that is gone when the next one saves."""
    choose = random.Random(3)
    command = [sys.executable, "-c", CHIEF, json.dumps(cluster.cluster), str(tmp_path)]
    last = 0
    for _ in range(20):
        chief = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        begun = time.monotonic()
        told = [int(chief.stdout.readline())]
        seconds = time.monotonic() - begun
        time.sleep(choose.uniform(0.0, min(1.0, seconds)))  # a random moment
        chief.send_signal(signal.SIGKILL)
        told += map(int, chief.stdout.read().split())
        chief.wait()
        chief.stdout.close()
        assert told[0] > last
        checkpoint = sg.train.Checkpoint(table=np.zeros((5000, 1000), np.float32), count=0)
        checkpoint.restore(sg.train.latest_checkpoint(tmp_path)).assert_consumed()
        last = checkpoint.count
        assert last in (told[-1], told[-1] + 1)
        assert (checkpoint.table == last).all()
        visible = [p for p in tmp_path.iterdir() if not p.name.startswith(".")]
        assert len(visible) <= 3
        assert len(list(tmp_path.iterdir())) <= 6
    poll(lambda: _save_leaves_nothing(tmp_path))


def _save_leaves_nothing(directory):
    """Servers may go on with what was given up for a moment, and the next save removes that."""
    checkpoint = sg.train.Checkpoint(number=1)
    checkpoint.save(directory / "other")
    checkpoint.sync()
    return not [p for p in directory.iterdir() if p.name.startswith(".")]
