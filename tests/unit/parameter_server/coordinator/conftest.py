"""A cluster in this process: real servers and connections, no processes to wait for."""

import threading
import time

import pytest

import stratagem as sg
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.parameter_server.server.parameter_service import ParameterService
from stratagem._src.parameter_server.worker.worker_service import WorkerService
from stratagem._src.transport import Credentials, Identity, TransportServer


class OneDeviceResolver(sg.distribute.cluster_resolver.SimpleClusterResolver):
    """Every worker of the cluster uses the first device."""

    @property
    def local_device_ids(self):
        return (0,)


class Cluster:
    """Two workers and a parameter server."""

    def __init__(self, ports):
        first, second, third = (f"127.0.0.1:{port}" for port in ports)
        self.spec = sg.train.ClusterSpec({"worker": [first, second], "ps": [third]})
        self.servers = {}
        self.coordinators = []
        for job, index in (("worker", 0), ("worker", 1), ("ps", 0)):
            self.start(job, index)

    def start(self, job, index):
        credentials = Credentials.from_environment()
        service = WorkerService(job, index, credentials) if job == "worker" else ParameterService()
        address, own = self.spec.task_address(job, index), Identity.of_task(job, index)
        endpoint = TransportServer(address, service.handlers, credentials, own)
        endpoint.start()
        self.servers[job, index] = service, endpoint

    def stop(self, job, index):
        service, endpoint = self.servers.pop((job, index))
        endpoint.shutdown()
        if job == "worker":
            service.close()

    def coordinator(self, **options):
        strategy = sg.distribute.ParameterServerStrategy(OneDeviceResolver(self.spec))
        coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy, **options)
        self.coordinators.append(coordinator)
        return coordinator

    def service(self, index):
        """The part of a worker that runs functions."""
        return self.servers["worker", index][0]

    def close(self):
        for coordinator in self.coordinators:
            coordinator._dispatcher.stop()
        for job, index in list(self.servers):
            self.stop(job, index)


@pytest.fixture
def cluster():
    with ReservedPorts(3) as ports:
        cluster = Cluster(ports)
        yield cluster
        cluster.close()


@pytest.fixture
def coordinator(cluster):
    return cluster.coordinator()


@pytest.fixture
def poll():
    """Waits until a condition is true and returns its value."""

    def poll(condition, seconds=30.0):
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
            time.sleep(0.005)
        return value

    return poll


@pytest.fixture
def in_thread():
    """Calls a function in a thread; returns a list that gets what it returns or raises."""

    def start(function):
        outcome = []

        def run():
            try:
                outcome.append(function())
            except BaseException as error:
                outcome.append(error)

        threading.Thread(target=run, daemon=True).start()
        return outcome

    return start
