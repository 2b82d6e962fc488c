"""``RaggedTensor``: constructors, and dense arrays of its rows."""

import numpy as np
import pytest

from stratagem._src.data.ragged_tensor import RaggedTensor
from stratagem.errors import InvalidArgumentError


def test_constructors_and_dense_arrays():
    rows = RaggedTensor.from_row_lengths(["a", "b", "c"], [2, 0, 1])
    assert rows.to_list() == [[b"a", b"b"], [], [b"c"]]
    assert rows.to_tensor("-").tolist() == [[b"a", b"b"], [b"-", b"-"], [b"c", b"-"]]
    assert rows.to_tensor(shape=[None, 1]).tolist() == [[b"a"], [b""], [b"c"]]
    nested = RaggedTensor.from_row_splits(rows, [0, 1, 3])
    assert nested.to_list() == [[[b"a", b"b"]], [[], [b"c"]]]
    assert nested.to_tensor().shape == (2, 2, 2)
    cut = RaggedTensor.from_tensor(np.arange(6).reshape(2, 3), lengths=[1, 3])
    assert cut.to_list() == [[0], [3, 4, 5]]
    assert cut.to_tensor(9, shape=[3, 2]).tolist() == [[0, 9], [3, 4], [9, 9]]
    padded = RaggedTensor.from_tensor([[1, 0, 2, 0], [0, 0, 0, 0]], padding=0)
    assert padded.to_list() == [[1, 0, 2], []]
    for splits in ([0, 4], [1, 3], [0, 2, 1, 3], []):
        with pytest.raises(InvalidArgumentError, match="Offsets of rows must begin with 0"):
            RaggedTensor.from_row_splits([1, 2, 3], splits)
