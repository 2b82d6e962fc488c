"""Functions of TensorFlow give here what they give there: values, dtypes, shapes, gradients, errors."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from compared_cases import call
from libraries import stratagem, tensorflow
from stored_results import StoredResults, groups


def all_cases():
    """Yields every case; the first of every third function is quick, for XLA compiles each of them."""
    seen = {}
    for name, cases in groups().items():
        for number, made in enumerate(cases):
            is_first = made.name not in seen
            place = seen.setdefault(made.name, len(seen))
            marks = [] if is_first and place % 3 == 0 else [pytest.mark.slow]
            yield pytest.param(name, number, made, id=f"{made.name}-{number}", marks=marks)


ALL = list(all_cases())
stored_results = functools.cache(StoredResults)


@pytest.fixture(autouse=True, scope="module")
def _quick_compiler():
    """Has XLA compile quickly: each of these programs runs once."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def compare(found, expected, made):
    if isinstance(expected, str):
        assert isinstance(found, str), f"TensorFlow raises {expected}, we give {found}"
        return
    assert not isinstance(found, str), f"we raise {found}, TensorFlow gives {expected}"
    for kind, ours, theirs in zip(("result", "gradient"), found, expected, strict=True):
        assert len(ours) == len(theirs), kind
        for mine, wanted in zip(ours, theirs, strict=True):
            assert mine.shape == wanted.shape, kind
            if wanted.dtype.kind == "O":
                assert mine.tolist() == wanted.tolist()
                continue
            # What stays on the host keeps its 64 bits.
            assert mine.dtype in (wanted.dtype, jax.dtypes.canonicalize_dtype(wanted.dtype)), kind
            finite = wanted[np.isfinite(wanted)] if wanted.dtype.kind in "fc" else wanted
            scale = float(np.abs(finite).max(initial=1)) if wanted.dtype.kind in "fc" else 0.0
            np.testing.assert_allclose(
                mine, wanted, rtol=made.rtol, atol=made.rtol * scale, err_msg=kind
            )


@pytest.mark.parametrize(("name", "number", "made"), ALL)
def test_gives_what_is_stored(name, number, made):
    compare(call(stratagem(), made), stored_results().of(name, number, made), made)


@pytest.mark.parametrize(
    ("name", "number", "made"), [one for one in ALL if one.values[0] == "cases_of_images"]
)
def test_images_of_numpy_give_what_is_stored(name, number, made):
    """They stay on the host; see image_arrays.py."""
    expected = stored_results().of(name, number, made)
    library = dataclasses.replace(stratagem(), tensor=lambda array: array)
    found = call(library, dataclasses.replace(made, gradient=False))
    compare(found, expected if isinstance(expected, str) else (expected[0], []), made)


@pytest.mark.peer("tensorflow")
@pytest.mark.parametrize(("name", "number", "made"), ALL)
def test_gives_what_tensorflow_gives(name, number, made):
    compare(call(stratagem(), made), call(tensorflow(), made), made)
