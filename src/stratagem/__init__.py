"""Stratagem: the tf.distribute programming model on JAX.

Write a training step once, pick a strategy, and run it on one device or many.
"""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

# Loaded at once, not when first used: cloudpickle pickles a class by value if the module that it names is
# not loaded, and an error that another process raised would be of another class here.
from stratagem import errors
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.core.version import __version__ as __version__
from stratagem._src.current_strategy import context
from stratagem._src.process.import_hooks import when_imported
from stratagem._src.tensorflow_api.names import TOP_NAMES

if TYPE_CHECKING:
    from stratagem import (
        autograph,
        bitwise,
        compat,
        config,
        data,
        debugging,
        distribute,
        dtypes,
        image,
        initializers,
        integrations,
        io,
        keras,
        linalg,
        lookup,
        losses,
        math,
        metrics,
        nest,
        nn,
        optimizers,
        profiler,
        random,
        saved_model,
        sparse,
        strings,
        summary,
        sysconfig,
        test,
        testing,
        tpu,
        train,
        version,
    )
    from stratagem._src.data.tensor_spec import TensorSpec
    from stratagem._src.tensorflow_api.array_creation import (
        constant,
        constant_initializer,
        convert_to_tensor,
        eye,
        fill,
        get_static_value,
        identity,
        identity_n,
        is_tensor,
        linspace,
        make_ndarray,
        meshgrid,
        one_hot,
        ones,
        ones_initializer,
        ones_like,
        range,
        sequence_mask,
        zeros,
        zeros_initializer,
        zeros_like,
    )
    from stratagem._src.tensorflow_api.array_indexing import (
        boolean_mask,
        dynamic_partition,
        dynamic_stitch,
        gather,
        gather_nd,
        scatter_nd,
        tensor_scatter_nd_add,
        tensor_scatter_nd_max,
        tensor_scatter_nd_min,
        tensor_scatter_nd_sub,
        tensor_scatter_nd_update,
        unravel_index,
        where,
    )
    from stratagem._src.tensorflow_api.array_padding import (
        batch_to_space,
        pad,
        repeat,
        reverse,
        reverse_sequence,
        roll,
        space_to_batch,
        tile,
    )
    from stratagem._src.tensorflow_api.array_shapes import (
        bitcast,
        broadcast_dynamic_shape,
        broadcast_static_shape,
        broadcast_to,
        ensure_shape,
        expand_dims,
        rank,
        reshape,
        shape,
        shape_n,
        size,
        squeeze,
        transpose,
    )
    from stratagem._src.tensorflow_api.array_slicing import (
        concat,
        parallel_stack,
        slice,
        split,
        stack,
        strided_slice,
        unstack,
    )
    from stratagem._src.tensorflow_api.array_sorting import (
        argsort,
        histogram_fixed_width,
        histogram_fixed_width_bins,
        searchsorted,
        sort,
        unique,
        unique_with_counts,
    )
    from stratagem._src.tensorflow_api.clipping import (
        clip_by_global_norm,
        clip_by_norm,
        clip_by_value,
    )
    from stratagem._src.tensorflow_api.control_flow import (
        case,
        control_dependencies,
        executing_eagerly,
        foldl,
        foldr,
        group,
        inside_function,
        map_fn,
        no_op,
        scan,
        stop_gradient,
        switch_case,
        vectorized_map,
        while_loop,
    )
    from stratagem._src.tensorflow_api.custom_gradients import (
        custom_gradient,
        grad_pass_through,
        recompute_grad,
    )
    from stratagem._src.tensorflow_api.debugging import (
        Assert,
        assert_equal,
        assert_greater,
        assert_less,
        assert_rank,
    )
    from stratagem._src.tensorflow_api.dtypes import (
        DType,
        as_dtype,
        cast,
        complex,
        double,
        half,
        newaxis,
        saturate_cast,
    )
    from stratagem._src.tensorflow_api.gradient_tape import (
        GradientTape,
    )
    from stratagem._src.tensorflow_api.host_calls import (
        device,
        get_logger,
        init_scope,
        numpy_function,
        py_function,
        timestamp,
    )
    from stratagem._src.tensorflow_api.host_tensor import (
        Tensor,
    )
    from stratagem._src.tensorflow_api.linalg import (
        einsum,
        matmul,
        norm,
        tensordot,
    )
    from stratagem._src.tensorflow_api.linalg_decompositions import (
        eig,
        eigvals,
    )
    from stratagem._src.tensorflow_api.math_binary import (
        add,
        add_n,
        atan2,
        divide,
        equal,
        greater,
        greater_equal,
        less,
        less_equal,
        logical_and,
        logical_or,
        maximum,
        minimum,
        multiply,
        not_equal,
        pow,
        realdiv,
        scalar_mul,
        subtract,
        truediv,
        truncatediv,
        truncatemod,
    )
    from stratagem._src.tensorflow_api.math_pointwise import (
        abs,
        acos,
        acosh,
        asin,
        asinh,
        atan,
        atanh,
        cos,
        cosh,
        exp,
        floor,
        logical_not,
        negative,
        round,
        sigmoid,
        sign,
        sin,
        sinh,
        sqrt,
        square,
        tan,
        tanh,
    )
    from stratagem._src.tensorflow_api.math_reductions import (
        argmax,
        argmin,
        cumsum,
        reduce_all,
        reduce_any,
        reduce_logsumexp,
        reduce_max,
        reduce_mean,
        reduce_min,
        reduce_prod,
        reduce_sum,
    )
    from stratagem._src.tensorflow_api.module import Module, name_scope
    from stratagem._src.tensorflow_api.printing import print
    from stratagem._src.tensorflow_api.random_stateful import (
        random_normal_initializer,
        random_uniform_initializer,
    )
    from stratagem._src.tensorflow_api.strings import as_string
    from stratagem._src.tensorflow_api.tape_gradients import (
        UnconnectedGradients,
    )
    from stratagem._src.tensorflow_api.tensor_array import TensorArray
    from stratagem.public_names import (
        IndexedSlices,
        RaggedTensor,
        SparseTensor,
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
        float16,
        float32,
        float64,
        function,
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
    "Assert",
    "DType",
    "GradientTape",
    "IndexedSlices",
    "Module",
    "RaggedTensor",
    "SparseTensor",
    "Tensor",
    "TensorArray",
    "TensorShape",
    "TensorSpec",
    "UnconnectedGradients",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "abs",
    "acos",
    "acosh",
    "add",
    "add_n",
    "argmax",
    "argmin",
    "argsort",
    "as_dtype",
    "as_string",
    "asin",
    "asinh",
    "assert_equal",
    "assert_greater",
    "assert_less",
    "assert_rank",
    "atan",
    "atan2",
    "atanh",
    "autograph",
    "batch_to_space",
    "bfloat16",
    "bitcast",
    "bitwise",
    "bool",
    "bool_",
    "boolean_mask",
    "broadcast_dynamic_shape",
    "broadcast_static_shape",
    "broadcast_to",
    "case",
    "cast",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "compat",
    "complex",
    "complex64",
    "complex128",
    "concat",
    "cond",
    "config",
    "constant",
    "constant_initializer",
    "control_dependencies",
    "convert_to_tensor",
    "cos",
    "cosh",
    "cumsum",
    "custom_gradient",
    "data",
    "debugging",
    "device",
    "distribute",
    "divide",
    "double",
    "dtypes",
    "dynamic_partition",
    "dynamic_stitch",
    "eig",
    "eigvals",
    "einsum",
    "ensure_shape",
    "equal",
    "errors",
    "executing_eagerly",
    "exp",
    "expand_dims",
    "eye",
    "fill",
    "float16",
    "float32",
    "float64",
    "floor",
    "foldl",
    "foldr",
    "function",
    "gather",
    "gather_nd",
    "get_logger",
    "get_static_value",
    "grad_pass_through",
    "greater",
    "greater_equal",
    "group",
    "half",
    "histogram_fixed_width",
    "histogram_fixed_width_bins",
    "identity",
    "identity_n",
    "image",
    "init_scope",
    "initializers",
    "inside_function",
    "int8",
    "int16",
    "int32",
    "int64",
    "integrations",
    "io",
    "is_tensor",
    "keras",
    "less",
    "less_equal",
    "linalg",
    "linspace",
    "logical_and",
    "logical_not",
    "logical_or",
    "lookup",
    "losses",
    "make_ndarray",
    "map_fn",
    "math",
    "matmul",
    "maximum",
    "meshgrid",
    "metrics",
    "minimum",
    "multiply",
    "name_scope",
    "negative",
    "nest",
    "newaxis",
    "nn",
    "no_op",
    "norm",
    "not_equal",
    "numpy_function",
    "one_hot",
    "ones",
    "ones_initializer",
    "ones_like",
    "optimizers",
    "pad",
    "parallel_stack",
    "pow",
    "print",
    "profiler",
    "py_function",
    "random",
    "random_normal_initializer",
    "random_uniform_initializer",
    "range",
    "rank",
    "realdiv",
    "recompute_grad",
    "reduce_all",
    "reduce_any",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "repeat",
    "reshape",
    "reverse",
    "reverse_sequence",
    "roll",
    "round",
    "saturate_cast",
    "saved_model",
    "scalar_mul",
    "scan",
    "scatter_nd",
    "searchsorted",
    "sequence_mask",
    "shape",
    "shape_n",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "size",
    "slice",
    "sort",
    "space_to_batch",
    "sparse",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "strided_slice",
    "string",
    "strings",
    "subtract",
    "summary",
    "switch_case",
    "sysconfig",
    "tan",
    "tanh",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "tensordot",
    "test",
    "testing",
    "tile",
    "timestamp",
    "tpu",
    "train",
    "transpose",
    "truediv",
    "truncatediv",
    "truncatemod",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique",
    "unique_with_counts",
    "unravel_index",
    "unstack",
    "value_and_grad",
    "vectorized_map",
    "version",
    "where",
    "while_loop",
    "zeros",
    "zeros_initializer",
    "zeros_like",
]

# Loaded on first use: the launcher and the membership server need none of them, nor JAX.
_MODULES = (
    "autograph",
    "bitwise",
    "compat",
    "config",
    "data",
    "debugging",
    "distribute",
    "dtypes",
    "image",
    "initializers",
    "integrations",
    "io",
    "keras",
    "linalg",
    "lookup",
    "losses",
    "math",
    "metrics",
    "nest",
    "nn",
    "optimizers",
    "profiler",
    "random",
    "saved_model",
    "sparse",
    "strings",
    "summary",
    "sysconfig",
    "test",
    "testing",
    "tpu",
    "train",
    "version",
)
_find = lazy_names(
    __name__,
    {name: ("stratagem.public_names", name) for name in __all__}
    | {name: (file, name) for name, file in TOP_NAMES.items()}
    | {name: (f"stratagem.{name}", None) for name in _MODULES}
    | {"TensorSpec": ("stratagem._src.data.tensor_spec", "TensorSpec")},
)


def _default_frame() -> context.Frame:
    # A lazy import, see above.
    from stratagem._src.strategies.default import default_frame

    return default_frame()


context.register_default_strategy(_default_frame)


def _bridge_keras() -> None:
    # A lazy import: it needs Keras.
    from stratagem._src.integrations.keras.bridge import bridge

    bridge()


def _change_jax() -> None:
    """Makes the two changes to JAX that this library makes in the whole process.

    XLA flags for slow machines, and the method ``numpy()`` of arrays: reads of variables and results of
    strategies are JAX arrays, and programs written for TensorFlow call it on every result.
    """
    # Lazy imports: they need JAX.
    from stratagem._src.jax_compat.numpy_method import give_arrays_a_numpy_method
    from stratagem._src.jax_compat.xla_flags import raise_collective_timeouts

    raise_collective_timeouts()
    give_arrays_a_numpy_method()


def _with_jax_for_keras() -> AbstractContextManager[None]:
    # A lazy import: few programs need it.
    from stratagem._src.integrations.keras.loader import jax_unless_chosen

    return jax_unless_chosen()


when_imported("keras", _bridge_keras, around=_with_jax_for_keras)
when_imported("jax", _change_jax)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        found = globals()[name] = _find(name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
