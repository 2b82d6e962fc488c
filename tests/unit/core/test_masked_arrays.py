"""Masked arrays are refused at every entrance, because the mask would be lost."""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

MASKED = np.ma.masked_array(np.arange(4, dtype=np.float32), [False, True, False, False])
SPEC = sg.TensorSpec((4,), "float32")


@pytest.mark.parametrize(
    "enter",
    [
        lambda: sg.data.Dataset.from_tensor_slices(MASKED),
        lambda: sg.data.Dataset.from_tensor_slices({"x": MASKED}),
        lambda: sg.data.Dataset.from_tensors(MASKED),
        lambda: list(sg.data.Dataset.from_generator(lambda: iter([MASKED]), output_signature=SPEC)),
        lambda: list(sg.data.Dataset.range(2).map(lambda _: MASKED)),
        lambda: sg.Variable(MASKED),
        lambda: sg.Variable(lambda: MASKED),
        lambda: sg.Variable(jnp.zeros(4)).assign(MASKED),
        lambda: sg.Variable(jnp.zeros(4)).assign_add(MASKED),
        lambda: sg.function(jnp.sum)(MASKED),
    ],
)
def test_a_masked_array_is_refused(enter):
    with pytest.raises(ValueError, match=r"mask.*filled"):
        enter()
