"""Summaries are written once, by the leader, wherever in a program they are recorded."""

import jax.numpy as jnp
import pytest
from tensorboardX.proto.event_pb2 import Event

import stratagem as sg

pytestmark = pytest.mark.about("calls")


def scalars_in(directory):
    found = []
    for path in sorted(directory.glob("events*")):
        for record in sg.data.TFRecordDataset(str(path)):
            event = Event.FromString(record)
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return sorted(found)


def test_each_summary_is_written_once(strategy, prepare, tmp_path):
    writer = sg.summary.create_file_writer(tmp_path)
    n = strategy.num_replicas_in_sync

    def in_replica(number):
        replica = sg.distribute.get_replica_context().replica_id_in_sync_group
        sg.summary.scalar("first replica", replica + number * 10.0, step=number)
        return number + 1.0

    def step(number):
        total = strategy.reduce("SUM", strategy.run(in_replica, (number,)), axis=None)
        sg.summary.scalar("total", total, step=number)
        return total

    run = prepare(step)
    with writer.as_default():
        for number in range(2):
            assert float(run(jnp.int32(number))) == n * (number + 1)
        sg.summary.scalar("after", 4.0, step=7)
    writer.close()
    # Of several workers the leader has written when all have come to the sum.
    strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1.0)), axis=None)
    assert scalars_in(tmp_path) == [
        ("after", 7, 4.0),
        ("first replica", 0, 0.0),
        ("first replica", 1, 10.0),
        ("total", 0, float(n)),
        ("total", 1, float(2 * n)),
    ]
