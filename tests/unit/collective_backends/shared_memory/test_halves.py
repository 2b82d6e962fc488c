"""Sums of 16-bit numbers: added in float32, rounded once, to the nearest."""

import ml_dtypes
import numpy as np
import pytest

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp, combine


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_sums_are_rounded_once(dtype, count):
    drawn = (
        np.random.default_rng(count).normal(size=(count, 40_000))
        * 10.0 ** np.arange(-3, 2)[:count, None]
    )
    brought = [row.astype(dtype) for row in drawn]
    result = np.empty(40_000, dtype)
    combine(CollectiveOp.SUM, brought, result)
    wide = brought[0].astype(np.float32)
    for other in brought[1:]:
        wide = wide + other.astype(np.float32)
    np.testing.assert_array_equal(result.view(np.uint16), wide.astype(dtype).view(np.uint16))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_what_is_no_number_stays_so(dtype):
    first = np.array([np.nan, np.inf, -np.inf, np.inf, 6e4, -0.0], dtype)
    second = np.array([1.0, 1.0, 1.0, -np.inf, 6e4, -0.0], dtype)
    for part in (slice(None), slice(1, 3), slice(4, 6)):
        result = np.empty_like(first[part])
        combine(CollectiveOp.SUM, [first[part], second[part]], result)
        with np.errstate(over="ignore"):
            exact = (first[part].astype(np.float32) + second[part].astype(np.float32)).astype(dtype)
        np.testing.assert_array_equal(result.astype(np.float32), exact.astype(np.float32))
