"""Stratagem: the tf.distribute programming model on JAX.

Write a training step once, pick a strategy, and run it on one device or many.
"""

from typing import TYPE_CHECKING

from stratagem import config, distribute
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
from stratagem.core.lazy_names import lazy_names
from stratagem.core.tensor_shape import TensorShape
from stratagem.execution.function import function
from stratagem.execution.gradients import value_and_grad
from stratagem.values.variable import Variable
from stratagem.values.variable_options import VariableAggregation, VariableSynchronization

if TYPE_CHECKING:
    from stratagem import data, io, testing, tpu, train

__version__ = "0.1.0"

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
    "config",
    "constant",
    "data",
    "distribute",
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
    "io",
    "testing",
    "tpu",
    "train",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
]


# Loaded when first asked for, to keep `import stratagem` quick.
_LAZY_MODULES = ("data", "io", "testing", "tpu", "train")
__getattr__ = lazy_names(__name__, {name: (f"stratagem.{name}", None) for name in _LAZY_MODULES})
