"""Where Gloo listens: what we use of JAX for it, and what happens where JAX has changed."""

import os

import jax
import jaxlib._jax
import pytest
from jax._src import distributed, xla_bridge

from stratagem._src.jax_compat import cpu_collectives
from stratagem._src.jax_compat.cpu_collectives import gloo_listens_at


@pytest.fixture
def made(monkeypatch):
    """Notes with which collectives a CPU client would be made."""
    made = []
    monkeypatch.setattr(xla_bridge, "make_cpu_client", lambda **given: made.append(given))
    monkeypatch.setattr(distributed.global_state, "client", object())
    return made


def start_backend():
    xla_bridge._backend_factories["cpu"].factory()


def test_private_names_are_there():
    assert cpu_collectives._registry() is xla_bridge._backend_factories
    assert jax.config.jax_cpu_collectives_implementation == "gloo"
    assert "hostname: str" in jaxlib._jax.make_gloo_tcp_collectives.__doc__


def test_the_collectives_get_the_host(made, monkeypatch):
    monkeypatch.setattr(jaxlib._jax, "make_gloo_tcp_collectives", lambda **given: given)
    before = xla_bridge._backend_factories["cpu"]
    with gloo_listens_at("10.0.0.7"):
        start_backend()
    assert made[0]["collectives"]["hostname"] == "10.0.0.7"
    assert made[0]["collectives"]["distributed_client"] is distributed.global_state.client
    assert xla_bridge._backend_factories["cpu"] is before


def test_collectives_wait_as_those_of_any_other_cpu_backend(monkeypatch):
    # Else XLA ends a worker of several devices whose collective takes long, and workers that join
    # compile with other flags than the rest.
    flags = []
    monkeypatch.setattr(
        xla_bridge, "make_cpu_client", lambda **_: flags.append(os.environ.get("XLA_FLAGS", ""))
    )
    with gloo_listens_at("10.0.0.7"):
        start_backend()
    assert "--xla_cpu_collective_call_terminate_timeout_seconds" in flags[0]


def test_without_a_host_nothing_changes():
    before = xla_bridge._backend_factories["cpu"]
    with gloo_listens_at(None):
        assert xla_bridge._backend_factories["cpu"] is before


def test_a_jax_that_takes_no_host_is_left_to_itself(made, monkeypatch):
    def make(distributed_client):
        raise AssertionError("is not called without a host")

    monkeypatch.setattr(jaxlib._jax, "make_gloo_tcp_collectives", make)
    with gloo_listens_at("10.0.0.7"):
        start_backend()
    assert made == [{}]


def test_a_jax_without_such_a_registry_is_left_to_itself(monkeypatch):
    monkeypatch.delattr(xla_bridge, "_backend_factories")
    with gloo_listens_at("10.0.0.7"):
        pass


def test_other_collectives_stay(monkeypatch):
    monkeypatch.setattr(cpu_collectives, "_uses_gloo", lambda: False)
    before = xla_bridge._backend_factories["cpu"]
    with gloo_listens_at("10.0.0.7"):
        assert xla_bridge._backend_factories["cpu"] is before
