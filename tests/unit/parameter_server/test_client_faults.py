"""Servers that are gone, silent, restarted or taken over."""

import socket

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.parameter_server.client import parameter_client as client_module
from stratagem._src.parameter_server.client.parameter_client import ParameterClient
from stratagem._src.transport import Credentials
from stratagem._src.variables.updates import ASSIGN_ADD


def test_a_server_that_is_gone_is_named(servers):
    variable = servers.sharded(np.zeros((4, 1)), num_shards=2)
    servers.client.check(1, timeout=5)
    servers.endpoints[1].shutdown()
    address = servers.endpoints[1].address
    for use in (
        variable.numpy,
        lambda: variable.assign_add(np.ones((4, 1))),
        lambda: servers.client.check(1, timeout=5),
    ):
        with pytest.raises(sg.errors.PSUnavailableError, match=f"/job:ps/task:1 at {address}"):
            use()
    assert float(variable.variables[0].numpy().sum()) in (0, 2)


def test_a_silent_server_is_given_up(monkeypatch):
    monkeypatch.setattr(client_module, "_RPC_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ParameterClient([f"127.0.0.1:{silent.getsockname()[1]}"], Credentials())
        with pytest.raises(
            sg.errors.PSUnavailableError,
            match=r"Timed out after 0\.3 s waiting for .*/job:ps/task:0",
        ):
            client.attach(timeout=0.3)
        with pytest.raises(sg.errors.PSUnavailableError, match="Lost parameter server"):
            client.pull([client_module.ReadRequest("w", 0)])
        client.close()


def test_the_newest_coordinator_has_the_servers(servers):
    old = servers.variable(np.zeros(1000))
    first, servers.client = servers.client, servers.new_client()
    with pytest.raises(sg.errors.VariableError, match="created by the coordinator"):
        servers.variable(1.0)
    servers.client.attach(timeout=5)
    assert servers.services[0].store.num_bytes == 0
    with pytest.raises(sg.errors.PSUnavailableError, match="another coordinator has taken it over"):
        old.numpy()
    assert float(servers.variable(3.0)) == 3
    first.close()


def test_a_push_that_cannot_be_carried_out_changes_nothing(servers):
    variable = servers.variable(0.0)
    requests = variable.update_requests(ASSIGN_ADD, (np.ones((), np.float32),))
    lost = requests[0]._replace(variable="lost")
    with pytest.raises(sg.errors.PSUnavailableError, match="does not hold the variable"):
        servers.client.push([*requests, lost])
    assert float(variable) == 0


def test_creation_inside_a_function_is_refused(servers):
    with pytest.raises(sg.errors.ContextError, match="Create it outside"):
        sg.function(lambda: servers.variable(1.0))()
