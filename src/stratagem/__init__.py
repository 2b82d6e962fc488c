"""Stratagem: the tf.distribute programming model on JAX.

Write a training step once, pick a strategy, and run it on one device or many.
"""

from typing import TYPE_CHECKING, Any

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.core.version import __version__ as __version__
from stratagem._src.core.when_imported import when_imported
from stratagem._src.current_strategy import context

if TYPE_CHECKING:
    from stratagem import (
        config,
        data,
        distribute,
        integrations,
        io,
        keras,
        metrics,
        nest,
        nn,
        profiler,
        saved_model,
        summary,
        testing,
        tpu,
        train,
    )
    from stratagem._src.data.tensor_spec import TensorSpec
    from stratagem.public_names import (
        IndexedSlices,
        TensorShape,
        Variable,
        VariableAggregation,
        VariableSynchronization,
        bfloat16,
        bool,
        bool_,
        complex64,
        complex128,
        cond,
        constant,
        errors,
        float16,
        float32,
        float64,
        function,
        identity,
        int8,
        int16,
        int32,
        int64,
        string,
        uint8,
        uint16,
        uint32,
        uint64,
        value_and_grad,
    )

__all__ = [
    "IndexedSlices",
    "TensorShape",
    "TensorSpec",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "bfloat16",
    "bool",
    "bool_",
    "complex64",
    "complex128",
    "cond",
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
    "integrations",
    "io",
    "keras",
    "metrics",
    "nest",
    "nn",
    "profiler",
    "saved_model",
    "string",
    "summary",
    "testing",
    "tpu",
    "train",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
]

# Loaded when first asked for: the launcher and the process where workers meet need none of it, nor JAX.
_MODULES = (
    "config",
    "data",
    "distribute",
    "integrations",
    "io",
    "keras",
    "metrics",
    "nest",
    "nn",
    "profiler",
    "saved_model",
    "summary",
    "testing",
    "tpu",
    "train",
)
_find = lazy_names(
    __name__,
    {name: ("stratagem.public_names", name) for name in __all__}
    | {name: (f"stratagem.{name}", None) for name in _MODULES}
    | {"TensorSpec": ("stratagem._src.data.tensor_spec", "TensorSpec")},
)


def _default_frame() -> context.Frame:
    # Imported when used: see above.
    from stratagem._src.strategies.default import default_frame

    return default_frame()


context.register_default_strategy(_default_frame)


def _bridge_keras() -> None:
    # Imported when used: it needs Keras.
    from stratagem._src.integrations.keras.bridge import bridge

    bridge()


when_imported("keras", _bridge_keras)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        found = globals()[name] = _find(name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
