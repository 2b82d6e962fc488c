"""A cluster that grows: no workers at first, and workers that the resolver names later."""

import threading

import pytest

import stratagem as sg
import stratagem._src.parameter_server.coordinator.periodic_checks as watch
from stratagem.distribute.coordinator import (
    PerWorkerValues,
    experimental_get_current_worker_index,
)

_shared = {}


def _wait_for_event():
    assert _shared["held"].wait(30)


@pytest.fixture
def growing(cluster, monkeypatch):
    """Makes a coordinator that knows some of the workers; ``grow`` tells it of others."""
    monkeypatch.setattr(watch, "_WORKER_DISCOVERY_INTERVAL_SECONDS", 0.02)
    jobs = cluster.spec.as_dict()

    def spec_of(indices):
        workers = {index: jobs["worker"][index] for index in indices}
        return sg.train.ClusterSpec({**jobs, "worker": workers})

    def make(*indices, **options):
        cluster.spec = spec_of(indices)
        coordinator = cluster.coordinator(**options)
        resolver = coordinator.strategy.cluster_resolver

        def grow(*indices):
            monkeypatch.setattr(resolver, "cluster_spec", lambda: spec_of(indices))

        return coordinator, grow

    return make


def test_without_workers_patience_ends(growing, in_thread, poll):
    coordinator, _ = growing(patience=0.5)
    fetched = in_thread(lambda: coordinator.schedule(abs, (-1,)).fetch())
    error = poll(lambda: fetched)[0]
    assert isinstance(error, sg.errors.UnavailableError)
    assert "none was available for 0.5 s. The cluster resolver reports no worker." in str(error)


def test_without_workers_the_queue_is_bounded_and_patience_ends(growing, in_thread, poll):
    coordinator, _ = growing(patience=1.5)
    filled = in_thread(lambda: [coordinator.schedule(abs, (i,)) for i in range(1000)])
    poll(lambda: coordinator._dispatcher.state.num_queued == 256)
    assert not filled
    assert isinstance(poll(lambda: filled)[0], sg.errors.UnavailableError)


def test_the_first_worker_wakes_who_waits_for_room(growing, in_thread, poll):
    coordinator, grow = growing()
    filled = in_thread(
        lambda: coordinator.fetch([coordinator.schedule(abs, (-i,)) for i in range(600)])
    )
    poll(lambda: coordinator._dispatcher.state.num_queued == 256)
    grow(1)
    assert poll(lambda: filled, 30.0)[0] == list(range(600))


def test_values_per_worker_stay_with_the_workers_they_were_made_for(growing, in_thread, poll):
    coordinator, grow = growing(1, closures_per_worker=1)
    _shared["held"] = threading.Event()
    values = PerWorkerValues(["of worker 1"])

    def pair(value):
        return experimental_get_current_worker_index(), value

    coordinator.schedule(_wait_for_event)
    pairs = [coordinator.schedule(pair, (values,)) for _ in range(50)]
    grow(0, 1)
    poll(lambda: coordinator._dispatcher.state.workers == {0, 1})
    # Worker 0 now comes first in their order, has time, and has no value.
    assert coordinator.schedule(experimental_get_current_worker_index).fetch() == 0
    pairs += [coordinator.schedule(pair, (values,)) for _ in range(50)]
    _shared["held"].set()
    joined = in_thread(coordinator.join)
    assert poll(lambda: joined) == [None]
    assert set(coordinator.fetch(pairs)) == {(1, "of worker 1")}
    with pytest.raises(ValueError, match=r"for the workers \[1\] where only \[0\] may run it"):
        coordinator.schedule(pair, (values,), worker=0)
    both = PerWorkerValues(["of worker 0", "of worker 1"])
    assert coordinator.schedule(pair, (both,), worker=0).fetch() == (0, "of worker 0")


def test_no_worker_that_has_a_value(cluster, in_thread, growing, poll):
    coordinator, grow = growing(0, patience=0.5)
    values = PerWorkerValues([7])
    assert coordinator.schedule(abs, (values,)).fetch() == 7
    grow(0, 1)
    poll(lambda: coordinator._dispatcher.state.workers == {0, 1})
    cluster.stop("worker", 0)
    fetched = in_thread(lambda: coordinator.schedule(abs, (values,)).fetch())
    error = poll(lambda: fetched)[0]
    assert isinstance(error, sg.errors.UnavailableError)
    assert "scheduled for worker 0, which was not available for 0.5 s" in str(error)


def test_values_per_worker_of_another_cluster(cluster, growing):
    values = PerWorkerValues([7])
    first, _ = growing(0)
    assert first.schedule(abs, (values,)).fetch() == 7
    cluster.spec = sg.train.ClusterSpec(
        {**cluster.spec.as_dict(), "worker": {1: cluster.servers["worker", 1][1].address}}
    )
    with pytest.raises(
        ValueError, match=r"first used with the workers \[0\].*got the workers \[1\]"
    ):
        cluster.coordinator().schedule(abs, (values,))
