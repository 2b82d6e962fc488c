"""What a compiled function keeps of the arguments that it was traced with."""

import numpy as np

import stratagem as sg
from stratagem._src.execution.call_signature import CallInputs


def test_a_copy_without_arrays_has_everything_else():
    iterator = iter(sg.data.Dataset.range(3))
    inputs = CallInputs((np.ones(3), "static", iterator), {"x": 1.5})
    copy = inputs.without_arrays()
    released = {"arrays", "iterators", "needs"}
    assert all(getattr(copy, name) == [] for name in released)
    for name in set(CallInputs.__slots__) - released:
        assert getattr(copy, name) == getattr(inputs, name), name
