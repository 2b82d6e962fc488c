"""Models that workers in step save and load together."""

import numpy as np
import pytest

import stratagem as sg

SECONDS = 200.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS)]


def save_and_load(directory):
    strategy = sg.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = sg.Variable([1.0, 2.0], aggregation=sg.VariableAggregation.SUM)

    @sg.function(input_signature=[sg.TensorSpec([None, 2])])
    def predict(x):
        return x @ w

    # Each replica of each worker adds one.
    sg.function(lambda: strategy.run(lambda: w.assign_add([1.0, 1.0])))()
    sg.saved_model.save(predict, directory)
    with strategy.scope():
        loaded = sg.saved_model.load(directory)
    rows = np.ones((3, 2), np.float32)
    predictions = [np.asarray(model(rows)).tolist() for model in (predict, loaded)]
    # What was loaded is of all replicas, as what was saved.
    in_replicas = sg.function(lambda: strategy.run(lambda: loaded(rows).sum()))()
    local = [float(value) for value in strategy.experimental_local_results(in_replicas)]
    return predictions, local, isinstance(loaded.variables[0], sg.distribute.DistributedValues)


def test_workers_save_once_and_load_into_all_replicas(tmp_path):
    directory = str(tmp_path / "model")
    results = sg.testing.run_cluster(
        save_and_load, 2, (directory,), devices_per_worker=2, timeout=SECONDS
    )
    # 1 + 4 and 2 + 4, as there are four replicas; loading changes nothing.
    assert results == [([[11.0] * 3] * 2, [33.0] * 2, True)] * 2
    # One process alone finds the same.
    assert sg.saved_model.load(directory)([[1.0, 1.0]]).tolist() == [11.0]
