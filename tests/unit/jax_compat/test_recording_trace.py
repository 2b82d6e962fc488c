"""Fails when a version of JAX changes what recording uses."""

import jax
import jax.numpy as jnp
import pytest

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.jax_compat import tape_internals
from stratagem._src.jax_compat.recording_trace import (
    RecordingTrace,
    available,
    base_of,
    current_trace,
    is_recorded,
    make_current,
)
from stratagem._src.jax_compat.tape_record import Record, alias_of


@pytest.fixture
def record():
    """Returns a record; what the test computes is recorded in it."""
    before = current_trace()
    made = Record()
    make_current(RecordingTrace(made, before))
    yield made
    make_current(before)


def test_this_version_of_jax_has_what_is_needed():
    assert available()


def test_results_are_arrays_whose_derivatives_are_known(record):
    x = jnp.array([1.0, 2.0])
    source = record.watch(x)
    y = jnp.sin(x) * x
    assert type(y) is type(x)
    assert is_recorded([y])
    assert not is_recorded([jnp.ones(2)])
    [found] = record.pull_back([record.tangent(y)], [jnp.ones(2)], [source])
    assert jnp.allclose(found, jnp.cos(x) * x + jnp.sin(x))


def test_calls_that_jax_has_compiled_before_are_recorded(record):
    double = jax.jit(lambda a: a * 2)
    x, other = jnp.ones(2), jnp.ones(2)
    double(other)
    double(other)
    record.watch(x)
    assert is_recorded([double(x)])


def test_another_object_is_the_same_array_without_a_copy():
    x = jnp.arange(3.0)
    made = alias_of(x)
    assert made is not x
    assert made.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()

    def traced(x):
        made = alias_of(x)
        assert made is not x
        return made + x

    assert len(jax.make_jaxpr(traced)(x).eqns) == 1


def test_the_trace_around_it_is_found(record):
    assert isinstance(current_trace(), RecordingTrace)
    assert not isinstance(base_of(current_trace()), RecordingTrace)


def test_what_was_not_recorded_is_refused(record):
    x = jnp.ones(2)
    source = record.watch(x)
    y = record.refuse(jnp.ones(2), "the reason") * x
    with pytest.raises(UnsupportedError, match="the reason"):
        record.pull_back([record.tangent(y)], [jnp.ones(2)], [source])


def test_another_version_of_jax_is_named(monkeypatch):
    monkeypatch.setattr(tape_internals, "MISSING", "module 'ad' has no attribute 'X'")
    with pytest.raises(UnsupportedError, match="value_and_grad"):
        Record()
    assert not is_recorded([jnp.ones(2)])
