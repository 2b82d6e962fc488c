"""What we use of JAX that it does not promise: if one of these fails, JAX has changed."""

import importlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from stratagem._src.jax_compat import distributed_runtime as jax_runtime


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("jax._src.api", "clean_up"),
        ("jax._src.dispatch", "wait_for_tokens"),
        ("jax._src.distributed", "global_state"),
    ],
)
def test_private_names_are_there(module, name):
    assert hasattr(importlib.import_module(module), name)


def test_an_array_says_whether_it_has_been_computed():
    array = jax.block_until_ready(jnp.ones(3))
    assert array.is_ready()
    assert jax_runtime.is_finished(array)


def test_an_array_that_is_being_computed_is_not_finished():
    # XLA runs small programs at once.
    array = jax.jit(lambda x: jnp.linalg.matrix_power(x, 2**30))(jnp.eye(1000))
    assert not jax_runtime.is_finished(array)
    array.delete()
    assert jax_runtime.is_finished(array)


def test_an_array_that_does_not_say_is_taken_for_finished():
    class Array:
        def is_deleted(self):
            return False

    assert jax_runtime.is_finished(Array())


@pytest.mark.parametrize(
    ("call", "printed"), [("", "waits cleans "), ("jax_runtime.abandon()", "")]
)
def test_abandoning_takes_back_what_jax_registered_for_exit(call, printed):
    source = (
        "from jax._src import api, dispatch\n"
        "from stratagem._src.jax_compat import distributed_runtime as jax_runtime\n"
        "dispatch.runtime_tokens.block_until_ready = lambda: print('waits', end=' ')\n"
        "api.distributed.shutdown = lambda: print('cleans', end=' ')\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", source + call], capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.split()) == sorted(printed.split()), finished.stderr


def test_a_jax_without_the_private_names_is_left_alone(monkeypatch):
    unregistered = []
    monkeypatch.setattr(jax_runtime.atexit, "unregister", unregistered.append)
    monkeypatch.setattr(jax_runtime, "_private", lambda *_: None)
    monkeypatch.setattr(jax_runtime, "_client", object())
    jax_runtime.abandon()
    assert not unregistered


def test_names_that_are_not_there_are_none():
    assert jax_runtime._private("jax._src.no_such_module", "x") is None
    assert jax_runtime._private("jax._src.api", "no_such_name") is None


def test_the_client_is_taken_back(monkeypatch):
    from jax._src import distributed

    client = object()
    monkeypatch.setattr(jax_runtime, "_client", client)
    monkeypatch.setattr(distributed.global_state, "client", client)
    jax_runtime.disconnect()
    assert distributed.global_state.client is None


def test_a_client_of_somebody_else_is_left_alone(monkeypatch):
    from jax._src import distributed

    client = object()
    monkeypatch.setattr(distributed.global_state, "client", client)
    jax_runtime.disconnect()
    assert distributed.global_state.client is client
