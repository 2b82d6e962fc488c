"""What is looked for in the arguments of a step, where flax is imported."""

from flax import nnx

import stratagem as sg
from stratagem._src.execution.flax_modules import ModuleArguments
from stratagem._src.values.per_replica import PerReplica


def test_values_of_the_strategy_are_not_opened(monkeypatch):
    # Among several processes a compiled function must not open them: every process would see other ones.
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    batch = strategy.experimental_distribute_values_from_function(lambda _: 1.0)
    monkeypatch.setattr(PerReplica, "values", None)
    found = ModuleArguments((batch, nnx.Linear(2, 1, rngs=nnx.Rngs(0))))
    assert len(found._before) == 2  # kernel and bias
