"""The names of ``stratagem`` itself, which loads this module when one of them is first asked for."""

from stratagem.array_ops import constant, identity
from stratagem.core import errors
from stratagem.core.dtypes import (
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
    uint8,
    uint16,
    uint32,
    uint64,
)
from stratagem.core.indexed_slices import IndexedSlices
from stratagem.core.tensor_shape import TensorShape
from stratagem.execution.function import function
from stratagem.execution.gradients import value_and_grad
from stratagem.values.variable import Variable
from stratagem.values.variable_options import VariableAggregation, VariableSynchronization

bool = bool_  # tf.bool; the builtin is not used in this module

__all__ = [
    "IndexedSlices",
    "TensorShape",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "bfloat16",
    "bool",
    "bool_",
    "complex64",
    "complex128",
    "constant",
    "errors",
    "float16",
    "float32",
    "float64",
    "function",
    "identity",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
]
