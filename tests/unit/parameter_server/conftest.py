"""Two parameter servers in this process, reached over real sockets."""

import pytest

import stratagem as sg
from stratagem._src.parameter_server.client.initial_value import InitialValue
from stratagem._src.parameter_server.client.parameter_client import ParameterClient
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.sharded_variable import ShardedVariable
from stratagem._src.parameter_server.server.parameter_service import ParameterService
from stratagem._src.transport import Credentials, Identity, TransportServer

CREDENTIALS = Credentials(secret="a secret of the tests, long enough")


class Servers:
    """Parameter servers, and a client of theirs."""

    credentials = CREDENTIALS

    def __init__(self, count):
        self.services = [ParameterService() for _ in range(count)]
        self.endpoints = [
            TransportServer(
                "127.0.0.1:0", service.handlers, CREDENTIALS, Identity.of_task("ps", index)
            )
            for index, service in enumerate(self.services)
        ]
        for endpoint in self.endpoints:
            endpoint.start()
        self.client = self.new_client()

    def new_client(self):
        return ParameterClient([endpoint.address for endpoint in self.endpoints], CREDENTIALS)

    def variable(self, value, server=0, dtype=None, **options):
        return RemoteVariable(
            sg.distribute.get_strategy(),
            self.client,
            InitialValue.of(value, dtype),
            servers=[server],
            **options,
        )

    def sharded(self, value, num_shards=3, dtype=None, **options):
        return ShardedVariable(
            sg.distribute.get_strategy(),
            self.client,
            InitialValue.of(value, dtype),
            servers=[k % len(self.endpoints) for k in range(num_shards)],
            **options,
        )

    def close(self):
        self.client.close()
        for endpoint in self.endpoints:
            endpoint.shutdown()


def _running(count):
    running = Servers(count)
    running.client.attach(timeout=10)
    yield running
    running.close()


@pytest.fixture
def servers():
    yield from _running(2)


@pytest.fixture
def three_servers():
    yield from _running(3)
