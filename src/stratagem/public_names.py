"""Top-level names of ``stratagem``, which loads this module on first use of one of them."""

from stratagem._src.core.dtypes import (
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)
from stratagem._src.core.dtypes import bool_ as bool  # tf.bool; the builtin is not used here
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.data.ragged_tensor import RaggedTensor
from stratagem._src.data.tfrecord.parse import SparseValues as SparseTensor
from stratagem._src.execution.conditionals import cond
from stratagem._src.execution.function import function
from stratagem._src.execution.gradients import value_and_grad
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = [
    "IndexedSlices",
    "RaggedTensor",
    "SparseTensor",
    "TensorShape",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "bfloat16",
    "bool",
    "bool_",
    "complex64",
    "complex128",
    "cond",
    "float16",
    "float32",
    "float64",
    "function",
    "int8",
    "int16",
    "int32",
    "int64",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
]
