"""The stations of TensorFlow's tutorial "Parameter server training with ParameterServerStrategy".

With a process for each worker and server, one that coordinates, and one that evaluates.
"""

import pytest

pytestmark = pytest.mark.timeout(240)


@pytest.mark.slow
def test_workers_train_variables_on_servers(launch, tmp_path):
    flags = ("--workers", 2, "--ps", 2, "--chief", "--evaluator")
    results = launch("parameter_server_training.py", tmp_path, flags=flags)
    chief, evaluator = results["chief 0"], results["evaluator 0"]
    assert chief["shards"] == 2
    assert chief["accuracies"][-1] == 1.0 > chief["accuracies"][0]
    assert chief["accuracy"] == 1.0
    assert chief["loss"] < 0.2
    assert evaluator["accuracies"][-1] == 1.0
