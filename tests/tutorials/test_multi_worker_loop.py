"""The stations of TensorFlow's tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy".

With two processes.
"""

import numpy as np
import pytest

import stratagem as tf

SCRIPT = "multi_worker_loop.py"
pytestmark = pytest.mark.timeout(240)


@pytest.mark.slow
def test_workers_train_one_model_and_save_it(launch, tmp_path):
    results = launch(SCRIPT, tmp_path)
    one, other = results["worker 0"], results["worker 1"]
    assert (one.pop("task"), other.pop("task")) == (["worker", 0], ["worker", 1])
    assert one == other
    assert one["resumed_at"] == [0, 0]
    assert one["losses"][-1] < one["losses"][0]
    assert one["iterations"] == 12

    # What all wrote together is read by a program without workers.
    epoch, step_in_epoch = tf.Variable(0), tf.Variable(0)
    latest = tf.train.latest_checkpoint(tmp_path)
    tf.train.Checkpoint(epoch=epoch, step_in_epoch=step_in_epoch).restore(latest)
    assert (int(epoch), int(step_in_epoch)) == (3, 0)


@pytest.mark.slow
def test_a_killed_worker_goes_on_from_the_checkpoint(launch, tmp_path):
    whole = launch(SCRIPT, tmp_path)["worker 0"]
    interrupted_in = tmp_path / "interrupted"
    interrupted_in.mkdir()
    flags = ("--workers", 2, "--max-restarts", 1)
    results = launch(SCRIPT, interrupted_in, "--die", flags=flags)
    one, other = results["worker 0"], results["worker 1"]
    assert (interrupted_in / "died").exists()
    assert one["resumed_at"] == other["resumed_at"] == [0, 2]
    assert one["weights"] == other["weights"]
    assert one["iterations"] == whole["iterations"]
    for weight, expected in zip(one["weights"], whole["weights"], strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5)
