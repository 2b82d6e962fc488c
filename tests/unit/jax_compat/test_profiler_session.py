"""The private names of JAX's profiler are what they were."""

import jax
import pytest

from stratagem._src.jax_compat.profiler_session import begin_session, end_session, planes_of


def test_a_session_records_what_is_annotated():
    session = begin_session(host_level=1, python_level=0)
    try:
        with jax.profiler.TraceAnnotation("noted", number=3):
            pass
        with pytest.raises(RuntimeError, match="has been started"):
            begin_session(host_level=1, python_level=0)
        with pytest.raises(RuntimeError, match="already been started"):
            jax.profiler.start_trace("nowhere")
    finally:
        record = end_session(session)
    events = [e for plane in planes_of(record) for line in plane.lines for e in line.events]
    assert [dict(event.stats)["number"] for event in events if event.name == "noted"] == [3]


def test_a_trace_of_jax_can_follow(tmp_path):
    end_session(begin_session(host_level=1, python_level=0))
    with jax.profiler.trace(tmp_path):
        pass
    assert list(tmp_path.rglob("*.xplane.pb"))
