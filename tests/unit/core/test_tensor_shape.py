import pickle

import jax.numpy as jnp
import pytest

from stratagem import TensorShape


def test_known_shape():
    shape = TensorShape([10, 3])
    assert shape == (10, 3) == tuple(shape)
    assert shape == [10, 3]
    assert shape != (10,)
    assert (shape.rank, shape.ndims, shape.dims, shape.as_list()) == (2, 2, [10, 3], [10, 3])
    assert shape.num_elements() == 30
    assert shape.is_fully_defined()
    assert shape[0] == 10
    assert hash(shape) == hash((10, 3))
    assert jnp.zeros(shape).shape == (10, 3)
    assert TensorShape(5) == (5,)
    assert (repr(shape), str(shape), str(TensorShape([2]))) == (
        "TensorShape([10, 3])",
        "(10, 3)",
        "(2,)",
    )
    assert shape.concatenate([1]) == (10, 3, 1)
    assert pickle.loads(pickle.dumps(shape)) == shape


def test_partly_known_shape():
    shape = TensorShape([None, 3])
    assert shape.num_elements() is None
    assert not shape.is_fully_defined()
    assert shape.is_compatible_with([7, 3])
    assert not shape.is_compatible_with([7, 4])
    assert not shape.is_compatible_with([3])


def test_unknown_rank():
    shape = TensorShape(None)
    assert shape.rank is shape.dims is shape.num_elements() is None
    assert shape != TensorShape([])
    assert shape.is_compatible_with([1, 2])
    assert shape.concatenate([1]).rank is None
    assert str(shape) == "<unknown>"
    assert pickle.loads(pickle.dumps(shape)).rank is None
    with pytest.raises(ValueError, match="known rank"):
        shape.as_list()


@pytest.mark.parametrize("dims", [[-1], [1.5], ["x"]])
def test_wrong_dimensions(dims):
    with pytest.raises(ValueError):
        TensorShape(dims)
