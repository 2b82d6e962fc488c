"""A job from its data to its export, beside an evaluator that takes as long as it likes."""

import json
import subprocess
import sys

import pytest

SECONDS = 200.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS)]

TRAIN_AND_EVALUATE = """
import numpy as np
import optax
import stratagem as sg

inputs = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
targets = inputs @ np.array([1.0, -2.0, 3.0], np.float32)

class Model:
    def __init__(self):
        self.w = sg.Variable(np.zeros(3, np.float32))

    @sg.function(input_signature=[sg.TensorSpec([None, 3])])
    def __call__(self, x):
        return x @ self.w

if kind == "evaluator":
    model = Model()

    def evaluate():
        Path("evaluating").touch()
        while not Path("trained").exists():  # the training ends all the same
            time.sleep(0.05)
        return {"loss": ((inputs @ model.w.numpy() - targets) ** 2).mean()}

    found = sg.train.SidecarEvaluator(
        evaluate,
        sg.train.Checkpoint(w=model.w),
        "checkpoints",
        log_dir="evaluated",
        max_evaluations=2,
    ).start()
    Path("found.json").write_text(json.dumps(found))
    sys.exit()

strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = Model()
optimizer = sg.train.Optimizer(optax.sgd, learning_rate=0.1)
manager = sg.train.CheckpointManager(sg.train.Checkpoint(w=model.w), "checkpoints", max_to_keep=50)

@sg.function
def train_step(batch):
    def replica_step(x, y):
        loss = lambda: sg.nn.compute_average_loss((model(x) - y) ** 2)
        optimizer.apply(sg.value_and_grad(loss, model.w)()[1], model.w)
    strategy.run(replica_step, args=batch)

dataset = sg.data.Dataset.from_tensor_slices((inputs, targets)).repeat(20).batch(32)
manager.save()
manager.sync()
while not Path("evaluating").exists():
    time.sleep(0.05)
for number, batch in enumerate(sg.train.progress(strategy.experimental_distribute_dataset(dataset))):
    train_step(batch)
    if number % 10 == 0:
        manager.save()
manager.save()
manager.sync()
sg.saved_model.save(model, "exported")
if strategy.extended.should_checkpoint:
    Path("trained").touch()
"""

SERVE = """
import sys
sys.modules["stratagem"] = None
import json
import numpy as np
from jax import export

index = json.load(open("exported/saved_model.json"))
program = export.deserialize(bytearray(open("exported/signatures/serving_default.jax", "rb").read()))
weights = np.load("exported/weights.npz")
needed = {name: weights[name] for name in index["signatures"]["serving_default"]["weights"]}
for rows in (1, 5):
    print(np.round(program.call(needed, np.ones((rows, 3), np.float32)), 1).tolist())
"""


def test_a_job_is_evaluated_without_waiting_and_exported(start, script, tmp_path):
    job = start("run", "--workers", 2, "--evaluator", script(TRAIN_AND_EVALUATE))
    job.finish(timeout=SECONDS)
    assert job.returncode == 0, job.stderr
    first, second = json.loads((tmp_path / "found.json").read_text()).values()
    assert second["loss"] < 1e-3
    assert second["loss"] < first["loss"]
    assert list((tmp_path / "evaluated").glob("events*"))
    # Once for the job, and with the examples of both: 32 in a step.
    lines = [line for line in job.stderr.splitlines() if "examples/s" in line]
    assert {line.partition("]")[0] for line in lines} == {"[worker 0"}
    words = lines[-1].split()
    assert words[words.index("steps/s") - 2] == "40"
    rates = [float(words[words.index(unit) - 1]) for unit in ("examples/s", "steps/s")]
    assert rates[0] / rates[1] == pytest.approx(32, rel=0.05)
    served = subprocess.run(
        [sys.executable, "-c", SERVE], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert served.stdout.splitlines() == ["[2.0]", str([2.0] * 5)], served.stderr
