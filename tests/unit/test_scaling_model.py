"""The model of step time behind ``benchmarks/scaling.py``."""

import importlib.util
import math
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("scaling_model", BENCHMARKS / "scaling_model.py")
    loaded = sys.modules["scaling_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules["scaling_model"]


@pytest.fixture
def cluster(model):
    """Machines of four, with links a hundred times faster inside than between them."""
    return model.Hardware("test", 4, model.Link(1e-6, 1e11), model.Link(1e-5, 1e9), cores=8)


def test_a_ring_moves_nearly_twice_the_bytes_however_many_take_part(model):
    link = model.Link(0.0, 1e9)
    assert model.ring_seconds(1, 1e9, link) == 0.0
    assert model.ring_seconds(2, 1e9, link) == pytest.approx(1.0)
    assert model.ring_seconds(1024, 1e9, link) == pytest.approx(2 * 1023 / 1024)


def test_a_tree_has_fewer_hops_and_a_ring_fewer_bytes(model):
    link = model.Link(1e-5, 1e9)
    assert model.tree_seconds(1024, 4e3, link) < model.ring_seconds(1024, 4e3, link) / 50
    assert model.tree_seconds(8, 1e9, link) > model.ring_seconds(8, 1e9, link)
    assert model.tree_seconds(1, 1e9, link) == 0.0


def test_machines_reduce_a_part_each_over_slow_links(model, cluster):
    inside = cluster.all_reduce_seconds(4, 1e9)
    assert inside == pytest.approx(model.ring_seconds(4, 1e9, cluster.inside))
    between = cluster.all_reduce_seconds(8, 1e9) - inside
    assert between == pytest.approx(model.ring_seconds(2, 1e9 / 4, cluster.between))


@pytest.mark.parametrize("num", [1, 2, 10, 1000])
def test_the_slowest_of_many_is_later_the_more_they_are(model, num):
    samples = np.random.default_rng(0).normal(size=(2000, num)).max(axis=1).mean()
    assert model.expected_maximum(num) == pytest.approx(samples, abs=0.07)


def test_one_worker_loses_nothing(model, cluster):
    work = model.Work("w", 0.1, 1e8, spread=0.1)
    alone = model.step_time(work, cluster, model.ControlPlane(1e-3, 8, 1e-3), 1)
    assert alone == (0.1, 0.0, 0.0, 0.0, 0.0)


def test_where_the_time_of_a_step_goes(model, cluster):
    work = model.Work("w", 0.1, 1e8, spread=0.1)
    control = model.ControlPlane(seconds_per_worker=1e-4, steps_at_once=8, cores_per_worker=1e-3)
    step = model.step_time(work, cluster, control, 64)
    assert step.stragglers == pytest.approx(0.01 * model.expected_maximum(64))
    assert step.all_reduce == cluster.all_reduce_seconds(64, 1e8)
    assert step.membership == pytest.approx(0.1 * 64 * 1e-3 / 8)
    assert step.input == 0.0  # it is hidden behind the rest
    found = model.efficiency(work, cluster, control, 64)
    assert found == pytest.approx(0.1 / step.total)


def test_input_counts_only_where_it_is_slower_than_the_rest(model, cluster):
    quick = model.Work("w", 1e-3, 0.0)
    control = model.ControlPlane(seconds_per_worker=1e-4, steps_at_once=8)
    step = model.step_time(quick, cluster, control, 1024)
    assert step.total == pytest.approx(1e-4 * 1024 / 8)
    slow_input = model.Work("w", 1e-3, 0.0, input_seconds=5e-3)
    assert model.step_time(slow_input, cluster, model.ControlPlane(), 1).total == pytest.approx(
        5e-3
    )


def points_of(model, machine, noise=0.0):
    random = np.random.default_rng(0)
    for num_processes in (2, 3, 4):
        for width in (64, 256, 1024):
            about = num_processes, 16.0 * width**2, 1e-6 * width, 1.5
            seconds = machine.step_seconds(*about) * (1 + random.normal(0, noise))
            yield model.Point(*about, seconds)


def test_what_made_the_points_is_found_again(model):
    truth = model.SharedMachine(2, start=5e-4, latency=2e-4, turn=1e-3, bandwidth=1e9)
    found = model.fit(list(points_of(model, truth)), 2)
    assert found.start == pytest.approx(truth.start)
    assert found.latency == pytest.approx(truth.latency)
    assert found.turn == pytest.approx(truth.turn)
    assert found.bandwidth == pytest.approx(truth.bandwidth)


def test_noise_in_the_points_becomes_an_error_of_its_size(model):
    truth = model.SharedMachine(2, start=5e-4, latency=2e-4, turn=1e-3, bandwidth=1e9)
    points = list(points_of(model, truth, noise=0.05))
    errors = model.relative_errors(model.fit(points, 2), points)
    assert 0.005 < statistics.fmean(map(abs, errors)) < 0.08


def test_no_cost_is_negative(model):
    free = model.SharedMachine(2)
    points = [p._replace(seconds=0.9 * p.seconds) for p in points_of(model, free)]
    found = model.fit(points, 2)
    assert (found.start, found.latency, found.turn) == (0.0, 0.0, 0.0)
    assert found.bandwidth == math.inf
