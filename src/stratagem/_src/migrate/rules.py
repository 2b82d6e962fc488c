"""The table of TensorFlow's functions that have an equal in JAX.

Each line reads as a call: the function of JAX with TensorFlow's parameters, in TensorFlow's order.

=================  =====================================================================================
``x:array``        an array, always passed by position
``xs:arrays``      a list of arrays, likewise
``x:computed``     an array that is not a variable, which ``jax.lax`` does not take
``s:shape``        a shape
``n:integer``      a whole number that is written in the text
``l:literal``      a list that is written in the call
``t:dtype``        an element type
``k:flag``         ``True`` or ``False``, written in the call
``o:never``        a call that passes it is not rewritten
``a>b``            JAX calls it ``b``
``!a``             JAX takes it by keyword only
``a=v``            written out if the call leaves it out, because JAX has another default
=================  =====================================================================================

A ``*`` before the function says that TensorFlow's also takes strings, which JAX has not.
Where JAX has no equal, or one with other results, the name stays under ``sg``, where it works as it is:
``jnp.clip`` and ``jax.nn.leaky_relu``, for example, have other gradients where an element is at a limit.
"""

from __future__ import annotations

__all__ = ["DROP_IN", "RULES"]

# Functions of one array of the same meaning, in tf.math; many are in tf, too.
_POINTWISE = {
    "abs": "jnp.abs",
    "acos": "jnp.arccos",
    "acosh": "jnp.arccosh",
    "asin": "jnp.arcsin",
    "asinh": "jnp.arcsinh",
    "atan": "jnp.arctan",
    "atanh": "jnp.arctanh",
    "ceil": "jnp.ceil",
    "cos": "jnp.cos",
    "cosh": "jnp.cosh",
    "exp": "jnp.exp",
    "expm1": "jnp.expm1",
    "floor": "jnp.floor",
    "is_finite": "jnp.isfinite",
    "is_inf": "jnp.isinf",
    "is_nan": "jnp.isnan",
    "log": "jnp.log",
    "log1p": "jnp.log1p",
    "log_sigmoid": "jax.nn.log_sigmoid",
    "logical_not": "jnp.logical_not",
    "negative": "jnp.negative",
    "sigmoid": "jax.nn.sigmoid",
    "sign": "jnp.sign",
    "sin": "jnp.sin",
    "sinh": "jnp.sinh",
    "sqrt": "jnp.sqrt",
    "square": "jnp.square",
    "tan": "jnp.tan",
    "tanh": "jnp.tanh",
}
_OF_TWO = {
    "add": "*jnp.add",
    "divide": "jnp.divide",
    "equal": "*jnp.equal",
    "floormod": "jnp.mod",
    "greater": "jnp.greater",
    "greater_equal": "jnp.greater_equal",
    "less": "jnp.less",
    "less_equal": "jnp.less_equal",
    "logical_and": "jnp.logical_and",
    "logical_or": "jnp.logical_or",
    "logical_xor": "jnp.logical_xor",
    "maximum": "jnp.maximum",
    "minimum": "jnp.minimum",
    "mod": "jnp.mod",
    "multiply": "jnp.multiply",
    "not_equal": "*jnp.not_equal",
    "pow": "jnp.power",
    "subtract": "jnp.subtract",
    "truediv": "jnp.divide",
}
_REDUCTIONS = {
    "reduce_all": "jnp.all",
    "reduce_any": "jnp.any",
    "reduce_logsumexp": "jax.nn.logsumexp",
    "reduce_max": "jnp.max",
    "reduce_mean": "jnp.mean",
    "reduce_min": "jnp.min",
    "reduce_prod": "jnp.prod",
    "reduce_std": "jnp.std",
    "reduce_sum": "jnp.sum",
    "reduce_variance": "jnp.var",
}
_MATHEMATICS = (
    {name: f"{target}(x:array)" for name, target in _POINTWISE.items()}
    | {name: f"{target}(x:array, y:array)" for name, target in _OF_TWO.items()}
    | {
        name: f"{target}(input_tensor:array, axis, !keepdims:flag)"
        for name, target in _REDUCTIONS.items()
    }
    | {
        "argmax": "jnp.argmax(input:array, axis=0, output_type:never)",
        "argmin": "jnp.argmin(input:array, axis=0, output_type:never)",
        "atan2": "jnp.arctan2(y:array, x:array)",
        "cumprod": "jnp.cumprod(x:array, axis=0, exclusive:never, reverse:never)",
        "cumsum": "jnp.cumsum(x:array, axis=0, exclusive:never, reverse:never)",
        "rsqrt": "jax.lax.rsqrt(x:computed)",
        "softplus": "jax.nn.softplus(features:array)",
    }
)
_NETWORKS = {
    "elu": "jax.nn.elu(features:array)",
    "gelu": "jax.nn.gelu(features:array, !approximate:flag=False)",
    "log_softmax": "jax.nn.log_softmax(logits:array, axis)",
    "relu": "jax.nn.relu(features:array)",
    "selu": "jax.nn.selu(features:array)",
    "sigmoid": "jax.nn.sigmoid(x:array)",
    "silu": "jax.nn.silu(features:array, beta:never)",
    "softmax": "jax.nn.softmax(logits:array, axis)",
    "softplus": "jax.nn.softplus(features:array)",
    "softsign": "jax.nn.soft_sign(features:array)",
    "swish": "jax.nn.silu(features:array, beta:never)",
    "tanh": "jnp.tanh(x:array)",
}
_LINALG = {
    "det": "jnp.linalg.det(input:array)",
    "einsum": "jnp.einsum(equation, *inputs:array)",
    "inv": "jnp.linalg.inv(input:array, adjoint:never)",
    "norm": "jnp.linalg.norm(tensor:array, ord:never, !axis:integer, !keepdims:flag)",
    "tensordot": "jnp.tensordot(a:array, b:array, axes)",
    "trace": "jnp.trace(x:array, !axis1=-2, !axis2=-1)",
}
_ARRAYS = {
    "broadcast_to": "jnp.broadcast_to(input:array, shape:shape)",
    "concat": "*jnp.concatenate(values:arrays, axis)",
    "einsum": "jnp.einsum(equation, *inputs:array)",
    "expand_dims": "*jnp.expand_dims(input:array, axis)",
    "eye": "jnp.eye(num_rows, num_columns>M, batch_shape:never, !dtype:dtype)",
    "fill": "*jnp.full(dims:shape, value:array)",
    "linspace": "jnp.linspace(start:array, stop:array, num, name:never, !axis)",
    "norm": "jnp.linalg.norm(tensor:array, ord:never, !axis:integer, !keepdims:flag)",
    "one_hot": (
        "jax.nn.one_hot(indices:array, depth>num_classes, on_value:never, off_value:never, !axis, "
        "!dtype:dtype)"
    ),
    "ones": "jnp.ones(shape:shape, dtype:dtype)",
    "ones_like": "*jnp.ones_like(input:array, dtype:dtype)",
    "pad": "jnp.pad(tensor:array, paddings>pad_width:literal, mode:never, constant_values:never)",
    "repeat": "*jnp.repeat(input:array, repeats:integer, !axis)",
    "reshape": "*jnp.reshape(tensor:array, shape:shape)",
    "reverse": "jnp.flip(tensor:array, axis:literal)",
    "roll": "jnp.roll(input:array, shift:integer, axis:integer)",
    "round": "jnp.round(x:array)",
    "split": "*jnp.split(value:array, num_or_size_splits>indices_or_sections:integer, axis, num:never)",
    "squeeze": "*jnp.squeeze(input:array, axis)",
    "stack": "*jnp.stack(values:arrays, axis)",
    "stop_gradient": "jax.lax.stop_gradient(input:array)",
    "tensordot": "jnp.tensordot(a:array, b:array, axes)",
    "tile": "*jnp.tile(input:array, multiples>reps:literal)",
    "transpose": "*jnp.transpose(a:array, perm>axes, conjugate:never)",
    "where": "*jnp.where(condition:array, x:array, y:array)",
    "zeros": "*jnp.zeros(shape:shape, dtype:dtype)",
    "zeros_like": "*jnp.zeros_like(input:array, dtype:dtype)",
}

RULES: dict[str, str] = (
    _MATHEMATICS
    | {f"math.{name}": rule for name, rule in _MATHEMATICS.items()}
    | {f"nn.{name}": rule for name, rule in _NETWORKS.items()}
    | {f"linalg.{name}": rule for name, rule in _LINALG.items()}
    | _ARRAYS
)
"""For each name below ``tf.`` the call that takes its place; ``tf.log`` of TensorFlow 1 is one, too."""

DROP_IN = {"data.experimental.TFRecordWriter", "experimental.numpy", "gfile", "set_random_seed"}
"""Names of the table of translations whose translation takes the same arguments."""
