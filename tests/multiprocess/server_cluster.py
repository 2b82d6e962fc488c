"""A cluster of server processes that can be killed, stopped and started again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from processes import poll

import stratagem as sg
from stratagem._src.cluster.reserved_ports import ReservedPorts


class ServerCluster:
    """Workers and parameter servers, each a process of its own."""

    def __init__(self, workers=2, ps=1, devices=1):
        self._nursery = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("server_nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)},
        )
        self._ports = ReservedPorts(workers + ps)
        addresses = [f"127.0.0.1:{port}" for port in self._ports]
        self.cluster = {"worker": addresses[:workers], "ps": addresses[workers:]}
        self._pids = {}
        for job, tasks in self.cluster.items():
            for index in range(len(tasks)):
                self.start(job, index)

    def start(self, job, index):
        """Starts a server; it listens some time later."""
        self._nursery.stdin.write(f"{job} {index} {json.dumps(self.cluster)}\n")
        self._nursery.stdin.flush()
        self._pids[job, index] = int(self._nursery.stdout.readline())

    def signal(self, job, index, number):
        """Sends a signal to a server."""
        os.kill(self._pids[job, index], number)

    def kill(self, job, index):
        """Kills a server and waits until it is gone."""
        self.signal(job, index, signal.SIGKILL)
        poll(lambda: not psutil.pid_exists(self._pids[job, index]))

    def pid(self, job, index):
        """Returns the process id of a server."""
        return self._pids[job, index]

    def rss(self, job, index):
        """Returns the memory of a server, in bytes."""
        return psutil.Process(self._pids[job, index]).memory_info().rss

    def strategy(self, **options):
        """Returns a strategy over the cluster."""
        spec = sg.train.ClusterSpec(self.cluster)
        resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(spec)
        return sg.distribute.ParameterServerStrategy(resolver, **options)

    def close(self):
        """Ends every process."""
        self._nursery.stdin.close()
        self._nursery.wait(10)
        self._nursery.stdout.close()
        poll(lambda: not any(map(psutil.pid_exists, self._pids.values())))
        self._ports.close()
