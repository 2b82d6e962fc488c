"""Metrics add up over replicas and steps, wherever they are updated and read."""

import jax.numpy as jnp
import numpy as np
import pytest
from replicas import one_process

import stratagem as sg

pytestmark = pytest.mark.about("calls")


def make(strategy, cls, **options):
    with strategy.scope():
        return cls(**options)


def replica_number():
    return sg.distribute.get_replica_context().replica_id_in_sync_group + 1.0


@pytest.mark.about("variables")
def test_updates_of_replicas_add_up(strategy, prepare, tmp_path):
    mean = make(strategy, sg.metrics.Mean)
    n = strategy.num_replicas_in_sync

    def step():
        x = jnp.array([1.0, 3.0]) * replica_number()
        mean.update_state(x)
        return mean.result()

    run, result = prepare(lambda: strategy.run(step)), prepare(lambda: mean.result())
    for count in (1, 2):
        results = run()
        expected = 2 * np.mean(range(1, n + 1))
        for of_replica in strategy.experimental_local_results(results):
            assert float(of_replica) == pytest.approx(expected)
        assert float(result()) == pytest.approx(expected)
        assert float(mean.count) == 2 * n * count
        assert float(mean.total) == pytest.approx(count * 4 * sum(range(1, n + 1)))
    checkpoint = sg.train.Checkpoint(metrics=[{"loss": mean}])
    path = checkpoint.save(tmp_path / "metrics")
    prepare(lambda: mean.reset_state())()
    assert float(mean.result()) == float(mean.count) == 0
    checkpoint.restore(path)
    assert float(mean.result()) == pytest.approx(expected)
    assert float(mean.count) == 4 * n


def test_area_under_the_curve_of_all_replicas(strategy):
    auc = make(strategy, sg.metrics.AUC, num_thresholds=5)
    n = strategy.num_replicas_in_sync

    def step():
        scores = jnp.array([0.3, 0.6]) + 0.1 * replica_number() / n
        auc.update_state([0, 1], scores, sample_weight=replica_number())
        return auc.result()

    result = sg.function(lambda: strategy.run(step))()
    alone = sg.metrics.AUC(num_thresholds=5)
    for number in range(1, n + 1):
        alone.update_state([0, 1], np.array([0.3, 0.6]) + 0.1 * number / n, sample_weight=number)
    for of_replica in strategy.experimental_local_results(result):
        assert float(of_replica) == pytest.approx(float(alone.result()))
    np.testing.assert_allclose(auc.true_positives.numpy(), alone.true_positives.numpy())


def test_updates_outside_of_replicas_count_once(strategy, execute):
    mean = make(strategy, sg.metrics.Mean)
    execute(lambda: mean.update_state([1.0, 2.0, 6.0], sample_weight=[1, 1, 2]))
    assert float(mean.count) == 4
    assert float(execute(lambda: mean(11.0))) == pytest.approx((1 + 2 + 12 + 11) / 5)


class Smoothed(sg.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.count = self.add_variable((2,), initializer="ones", name="count")

    def update_state(self, value):
        self.count.assign_add(value)

    def result(self):
        return self.count.read_value()


@pytest.mark.about("variables")
def test_a_first_value_is_that_of_all_replicas_together(strategy, prepare):
    metric = make(strategy, Smoothed)
    np.testing.assert_array_equal(metric.result(), [1, 1])
    run = prepare(lambda: strategy.run(lambda: metric.update_state(jnp.ones(2))))
    for count in (1, 2):
        run()
        n = strategy.num_replicas_in_sync
        np.testing.assert_array_equal(metric.result(), [1 + n * count] * 2)


@pytest.mark.not_on("parameter_server2", reason="a function does not create variables on servers")
def test_a_metric_that_a_function_creates_begins_with_its_first_value_once(strategy):
    made = []

    @sg.function
    def step():
        if not made:
            made.append(make(strategy, Smoothed))
        strategy.run(lambda: made[0].update_state(jnp.ones(2)))
        return made[0].result()

    for count in (1, 2):
        n = strategy.num_replicas_in_sync
        np.testing.assert_array_equal(step(), [1 + n * count] * 2)


def test_per_replica_values_are_handed_out(strategy, execute):
    mean = make(strategy, sg.metrics.Mean)

    def step():
        mean.update_state(strategy.run(replica_number))

    execute(step)
    assert float(mean.result()) == pytest.approx(
        np.mean(range(1, strategy.num_replicas_in_sync + 1))
    )
    assert float(mean.count) == strategy.num_replicas_in_sync


def test_partial_and_empty_batches(strategy, execute_ragged):
    accuracy = make(strategy, sg.metrics.SparseCategoricalAccuracy)
    n = strategy.num_replicas_in_sync
    for rows in (2 * n, 2 * n + 1, 1):
        labels = np.arange(rows) % 2
        scores = np.eye(2, dtype=np.float32)[np.zeros(rows, int)]
        batches = sg.data.Dataset.from_tensor_slices((labels, scores)).batch(rows)
        accuracy.reset_state()
        for batch in strategy.experimental_distribute_dataset(batches):
            execute_ragged(lambda x: strategy.run(accuracy.update_state, args=x), batch)
        assert float(accuracy.result()) == pytest.approx(np.mean(labels == 0)), rows


@one_process("a plain variable belongs to one process")
def test_metric_from_outside_of_the_scope(strategy, execute):
    mean = sg.metrics.Mean()

    def step():
        mean.update_state(replica_number())
        return mean.result()

    results = execute(lambda: strategy.run(step))
    n = strategy.num_replicas_in_sync
    for result in strategy.experimental_local_results(results):
        assert float(result) == pytest.approx(np.mean(range(1, n + 1)))


def test_update_inside_value_and_grad(strategy, execute):
    w = make(strategy, sg.Variable, initial_value=3.0)
    mean = make(strategy, sg.metrics.Mean)

    def loss():
        value = w * w * replica_number()
        mean.update_state(value)
        return value

    execute(lambda: strategy.run(lambda: sg.value_and_grad(loss, w)()))
    n = strategy.num_replicas_in_sync
    assert float(mean.result()) == pytest.approx(9 * np.mean(range(1, n + 1)))
