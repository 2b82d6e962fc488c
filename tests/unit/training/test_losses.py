import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

average = sg.nn.compute_average_loss


@pytest.mark.parametrize(
    ("losses", "weights", "size", "expected"),
    [
        ([1.0, 2.0, 6.0], None, None, 3.0),
        ([1.0, 2.0, 6.0], [1, 0, 2], None, 13 / 3),
        ([1.0, 2.0, 6.0], [[1], [0], [2]], 2, 6.5),
        ([[1.0, 3.0], [5.0, 7.0]], None, None, 8.0),
        ([[1.0, 3.0], [5.0, 7.0]], [1, 2], None, 14.0),
        ([[1.0, 3.0], [5.0, 7.0]], [[1, 0], [0, 2]], None, 7.5),
        ([[1.0, 3.0], [5.0, 7.0]], 0.5, None, 4.0),
        ([2, 4], None, None, 3.0),
        ([1.0], None, 0, 0.0),
        (np.zeros(0), None, None, 0.0),
        (np.zeros(0), None, np.int64(0), 0.0),
    ],
)
def test_numbers(losses, weights, size, expected):
    assert float(average(losses, weights, size)) == pytest.approx(expected)


def test_half_precision_sums_do_not_overflow():
    result = average(jnp.full(100, 1000, jnp.float16))
    assert (result.dtype, float(result)) == (jnp.float16, 1000)


@pytest.mark.parametrize(
    ("losses", "options", "message"),
    [
        (1.0, {}, "first dimension"),
        ([1.0, 2.0], {"sample_weight": [1, 2, 3]}, r"shape \(3,\)"),
        ([1.0, 2.0], {"sample_weight": [[1, 2], [3, 4]]}, r"shape \(2, 2\)"),
        ([1.0], {"global_batch_size": 2.5}, "one integer"),
        ([1.0], {"global_batch_size": [2]}, "one integer"),
        ([1.0], {"global_batch_size": -2}, "negative"),
        ([1.0], {"global_batch_size": True}, "got True"),
    ],
)
def test_what_is_refused(losses, options, message):
    with pytest.raises(ValueError, match=message):
        average(losses, **options)
