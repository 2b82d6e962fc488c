"""The stations of TensorFlow's tutorial "Multi-worker training with Keras", with two processes."""

import numpy as np
import pytest

import stratagem as tf

SCRIPT = "multi_worker_keras.py"
pytestmark = pytest.mark.timeout(240)


def test_workers_train_save_and_restore_one_model(launch, tmp_path):
    results = launch(SCRIPT, tmp_path)
    one, other = results["worker 0"], results["worker 1"]
    assert one.pop("task") == ["worker", 0]
    assert other.pop("task") == ["worker", 1]
    assert one == other
    assert one["replicas"] == 2
    assert one["restored"]
    assert one["loss"][-1] < one["loss"][0]
    assert one["evaluated"][0] == pytest.approx(one["val_loss"][-1], rel=1e-4)
    assert len(one["predictions"]) == 64

    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    np.testing.assert_allclose(
        loaded.predict(rows, verbose=0), one["predictions"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_killed_worker_goes_on_from_the_backup(launch, tmp_path):
    flags = ("--workers", 2, "--max-restarts", 1)
    results = launch(SCRIPT, tmp_path, "--die", flags=flags)
    assert (tmp_path / "died").exists()
    # Only the epochs after the restart; the first had been saved.
    assert len(results["worker 0"]["loss"]) == len(results["worker 1"]["loss"]) == 2
