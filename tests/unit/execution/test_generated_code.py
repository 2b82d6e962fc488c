"""The source of the fast path, as files show it for typical signatures.

The fast path is code that writes code: a change of the writer shows here as a change of what it writes.
If the change is intended, delete the file in ``generated_code/``, run the test, and read the new one.
"""

import pathlib

import jax.numpy as jnp
import pytest

import stratagem as sg
from stratagem._src.core import codegen
from stratagem._src.execution import launch_codegen

FOLDER = pathlib.Path(__file__).parent / "generated_code"


@pytest.fixture(autouse=True)
def dumped(tmp_path, monkeypatch):
    """The directory that generated functions are written to."""
    monkeypatch.setenv(codegen.DUMP_VARIABLE, str(tmp_path / "code"))
    # From Python 3.12 on, the generated code need not pause the garbage collector.
    monkeypatch.setattr(launch_codegen, "GC_RUNS_ON_ALLOCATION", True)
    return tmp_path / "code"


def mirrored(devices):
    strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    with strategy.scope():
        total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)
    return strategy, total


def one_argument():
    """`step(x)` without a strategy and without variables."""
    step = sg.function(lambda x: x * 2)
    return [step(jnp.ones(3)) for _ in range(2)]


def nested_arguments():
    """A dictionary, and an array passed by keyword."""

    @sg.function
    def step(batch, *, scale):
        return batch["x"] * scale

    return [step({"x": jnp.ones(2)}, scale=jnp.float32(2)) for _ in range(2)]


def written_and_read_variables():
    """One device: a variable that is written, and so donated, and one that is only read."""
    strategy, total = mirrored(1)
    with strategy.scope():
        rate = sg.Variable(0.5)

    @sg.function
    def step(x):
        total.assign_add(rate * jnp.sum(x))

    step(jnp.ones(2))
    step(jnp.ones(2))
    return float(total)


def replicas():
    """Two devices: a replica function that returns what it computes."""
    strategy, total = mirrored(2)

    @sg.function
    def step(x):
        def replica_fn(x):
            total.assign_add(jnp.sum(x))
            return x

        return strategy.run(replica_fn, args=(x,))

    values = strategy.experimental_distribute_values_from_function(
        lambda replica: jnp.full(2, 1.0 + replica.replica_id_in_sync_group)
    )
    step(values)
    step(values)
    return float(total)


def drawn_elements():
    """Two devices: a step that draws the element of each replica from a distributed iterator."""
    strategy, total = mirrored(2)
    dataset = sg.data.Dataset.range(8, output_type=jnp.float32).batch(2)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    @sg.function
    def step(iterator):
        strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(next(iterator),))

    step(iterator)
    step(iterator)
    return float(total)


RESULTS = {
    nested_arguments: None,
    written_and_read_variables: 2.0,
    replicas: 12.0,
    drawn_elements: 6.0,
    one_argument: None,
}


@pytest.mark.parametrize("call", RESULTS, ids=lambda call: call.__name__)
def test_the_fast_path_is_as_expected(call, dumped):
    result = call()
    if RESULTS[call] is not None:
        assert result == RESULTS[call]
    path = max(dumped.iterdir(), key=lambda path: int(path.stem.rpartition("_")[2]))
    code = path.read_text().partition("\n\n# ")[0] + "\n"
    expected = FOLDER / f"{call.__name__}.txt"
    if not expected.exists():
        expected.write_text(code)
        pytest.fail(f"wrote {expected}: read it, and run the test again")
    assert code == expected.read_text(), f"if this is intended, delete {expected} and run again"
