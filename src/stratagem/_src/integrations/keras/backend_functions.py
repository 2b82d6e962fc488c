"""The functions of ``tf.keras.backend``, over ``keras.ops``, with the arguments and results of Keras 2.

The ``backend`` that Keras keeps for older programs computes with TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from stratagem._src.core.types import ArrayLike, DTypeLike, ScalarLike, ShapeLike, Tensor
from stratagem._src.integrations.keras.keras_internals import KerasVariable
from stratagem._src.tensorflow_api import random_stateful

__all__ = ["BACKEND_FUNCTIONS", "backend_function"]

Axis = int | Sequence[int] | None


def _reduction(compute: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Any:
        return compute(x, axis=axis, keepdims=keepdims)

    return reduced


def _mean_of(compute: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Any:
        x = ops.convert_to_tensor(x)
        if keras.backend.standardize_dtype(x.dtype) == "bool":
            x = ops.cast(x, keras.config.floatx())
        return compute(x, axis=axis, keepdims=keepdims)

    return reduced


def _over_bools(compute: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Any:
        return compute(ops.cast(x, "bool"), axis=axis, keepdims=keepdims)

    return reduced


def _sqrt(x: ArrayLike) -> Any:
    # Of a negative number 0, as in Keras 2.
    return ops.sqrt(ops.maximum(x, 0))


def _clip(x: ArrayLike, min_value: Any = None, max_value: Any = None) -> Any:
    low = -np.inf if min_value is None else min_value
    high = np.inf if max_value is None else max_value
    return ops.minimum(ops.maximum(x, low), ops.maximum(low, high))


def _hard_sigmoid(x: ArrayLike) -> Any:
    # Its slope is 0.2 in Keras 2, and 1/6 in keras.ops.
    return ops.clip(0.2 * ops.convert_to_tensor(x) + 0.5, 0.0, 1.0)


def _relu(
    x: ArrayLike, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0
) -> Any:
    return keras.activations.relu(x, negative_slope=alpha, max_value=max_value, threshold=threshold)


def _l2_normalize(x: ArrayLike, axis: Axis = None) -> Any:
    x = ops.convert_to_tensor(x)
    return x * ops.rsqrt(ops.maximum(ops.sum(ops.square(x), axis=axis, keepdims=True), 1e-12))


def _loss(compute: Callable[..., Any]) -> Callable[..., Any]:
    def loss(
        target: ArrayLike, output: ArrayLike, from_logits: bool = False, **options: Any
    ) -> Any:
        output = ops.convert_to_tensor(output)
        return compute(ops.cast(target, output.dtype), output, from_logits=from_logits, **options)

    return loss


def _sparse_loss(
    target: ArrayLike, output: ArrayLike, from_logits: bool = False, axis: int = -1
) -> Any:
    target = ops.cast(target, "int32")
    return ops.sparse_categorical_crossentropy(target, output, from_logits=from_logits, axis=axis)


def _flatten(x: ArrayLike) -> Any:
    return ops.reshape(x, (-1,))


def _batch_flatten(x: ArrayLike) -> Any:
    return ops.reshape(x, (-1, int(np.prod(ops.shape(x)[1:]))))


def _repeat(x: ArrayLike, n: int) -> Any:
    """Repeats each row of a matrix along a new second axis."""
    return ops.repeat(ops.expand_dims(x, 1), n, axis=1)


def _reverse(x: ArrayLike, axes: Axis) -> Any:
    return ops.flip(x, axis=axes)


def _int_shape(x: ArrayLike) -> tuple[int | None, ...]:
    return tuple(x.shape)


def _dtype(x: Tensor) -> str:
    name: str = keras.backend.standardize_dtype(x.dtype)
    return name


def _switch(condition: ArrayLike, then_expression: Any, else_expression: Any) -> Any:
    then, other = (e() if callable(e) else e for e in (then_expression, else_expression))
    then = ops.convert_to_tensor(then)
    condition = ops.cast(condition, "bool")
    # A condition of fewer dimensions chooses rows.
    missing = max(0, len(then.shape) - len(condition.shape)) if condition.shape else 0
    return ops.where(ops.reshape(condition, (*condition.shape, *[1] * missing)), then, other)


def _random(name: str, **defaults: ScalarLike) -> Callable[..., Any]:
    draw = getattr(random_stateful, name)

    def random(shape: ShapeLike, *values: ScalarLike, **named: Any) -> Any:
        given = (
            dict(defaults) | dict(zip((*defaults, "dtype", "seed"), values, strict=False)) | named
        )
        given["dtype"] = given.get("dtype") or keras.config.floatx()
        return draw(shape, **given)

    return random


def _bernoulli(
    shape: ShapeLike, p: ScalarLike = 0.0, dtype: DTypeLike = None, seed: int | None = None
) -> Any:
    drawn = random_stateful.uniform(shape, seed=seed)
    return ops.cast(drawn < p, dtype or keras.config.floatx())


def _dropout(
    x: ArrayLike, level: ScalarLike, noise_shape: ShapeLike = None, seed: int | None = None
) -> Any:
    return random_stateful.dropout(x, rate=level, noise_shape=noise_shape, seed=seed)


def _constant(
    value: ArrayLike, dtype: DTypeLike = None, shape: ShapeLike = None, name: str | None = None
) -> Any:
    made = ops.convert_to_tensor(value, dtype=dtype or keras.config.floatx())
    return made if shape is None else ops.broadcast_to(made, shape)


def _variable(
    value: ArrayLike,
    dtype: DTypeLike = None,
    name: str | None = None,
    constraint: Callable[..., Any] | None = None,
) -> KerasVariable:
    variable = keras.Variable(value, dtype=dtype or keras.config.floatx(), name=name)
    variable.constraint = constraint
    return variable


def _get_value(x: ArrayLike) -> Any:
    return ops.convert_to_numpy(ops.convert_to_tensor(x))


def _set_value(x: KerasVariable, value: ArrayLike) -> None:
    x.assign(value)


def _batch_set_value(tuples: Iterable[tuple[KerasVariable, ArrayLike]]) -> None:
    for x, value in tuples:
        x.assign(value)


def _assign(x: KerasVariable, new_x: ArrayLike) -> Any:
    return x.assign(new_x)


def _assign_add(x: KerasVariable, increment: ArrayLike) -> Any:
    return x.assign_add(increment)


def _assign_sub(x: KerasVariable, decrement: ArrayLike) -> Any:
    return x.assign_sub(decrement)


def _filled(compute: Callable[..., Any]) -> Callable[..., Any]:
    def filled(shape: ShapeLike, dtype: DTypeLike = None, name: str | None = None) -> Any:
        return compute(shape, dtype=dtype or keras.config.floatx())

    return filled


_SAME = (
    "abs arange cast cos dot elu equal exp eye greater greater_equal less "
    "less_equal log maximum minimum ndim not_equal one_hot ones_like reshape round shape "
    "sigmoid sign sin softmax softplus softsign square squeeze stack tanh tile transpose zeros_like"
)

BACKEND_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(ops, name) for name in _SAME.split()},
    **{name: _mean_of(getattr(ops, name)) for name in ("mean", "std", "var")},
    **{name: _over_bools(getattr(ops, name)) for name in ("all", "any")},
    **{name: _reduction(getattr(ops, name)) for name in ("sum", "prod", "max", "min")},
    "argmax": lambda x, axis=-1: ops.argmax(x, axis),
    "argmin": lambda x, axis=-1: ops.argmin(x, axis),
    "batch_flatten": _batch_flatten,
    "batch_get_value": lambda tensors: [_get_value(x) for x in tensors],
    "batch_set_value": _batch_set_value,
    "binary_crossentropy": _loss(ops.binary_crossentropy),
    "categorical_crossentropy": _loss(ops.categorical_crossentropy),
    "clip": _clip,
    "concatenate": lambda tensors, axis=-1: ops.concatenate(tensors, axis),
    "constant": _constant,
    "count_params": lambda x: int(np.prod(x.shape)),
    "cumprod": lambda x, axis=0: ops.cumprod(x, axis),
    "cumsum": lambda x, axis=0: ops.cumsum(x, axis),
    "dropout": _dropout,
    "dtype": _dtype,
    "eval": _get_value,
    "expand_dims": lambda x, axis=-1: ops.expand_dims(x, axis),
    "flatten": _flatten,
    "gather": lambda reference, indices: ops.take(reference, indices, axis=0),
    "get_value": _get_value,
    "hard_sigmoid": _hard_sigmoid,
    "int_shape": _int_shape,
    "l2_normalize": _l2_normalize,
    "name_scope": keras.name_scope,
    "ones": _filled(ops.ones),
    "permute_dimensions": lambda x, pattern: ops.transpose(x, pattern),
    "pow": lambda x, a: ops.power(x, a),
    "random_bernoulli": _bernoulli,
    "random_normal": _random("normal", mean=0.0, stddev=1.0),
    "random_uniform": _random("uniform", minval=0.0, maxval=1.0),
    "relu": _relu,
    "repeat": _repeat,
    "repeat_elements": lambda x, rep, axis: ops.repeat(x, rep, axis=axis),
    "reverse": _reverse,
    "set_value": _set_value,
    "sparse_categorical_crossentropy": _sparse_loss,
    "sqrt": _sqrt,
    "stop_gradient": ops.stop_gradient,
    "switch": _switch,
    "truncated_normal": _random("truncated_normal", mean=0.0, stddev=1.0),
    "update": _assign,
    "update_add": _assign_add,
    "update_sub": _assign_sub,
    "variable": _variable,
    "zeros": _filled(ops.zeros),
}

_OTHERS = {
    "batch_dot": "keras.ops.einsum",
    "batch_normalization": "keras.ops.batch_normalization",
    "bias_add": "x + bias",
    "conv1d": "keras.ops.conv",
    "conv2d": "keras.ops.conv",
    "conv2d_transpose": "keras.ops.conv_transpose",
    "conv3d": "keras.ops.conv",
    "ctc_batch_cost": "keras.ops.ctc_loss",
    "ctc_decode": "keras.ops.ctc_decode",
    "depthwise_conv2d": "keras.ops.depthwise_conv",
    "foldl": "keras.ops.scan",
    "foldr": "keras.ops.scan with reverse=True",
    "function": "keras.Model(inputs, outputs)",
    "gradients": "a GradientTape",
    "in_top_k": "keras.ops.in_top_k",
    "in_train_phase": "the argument training of call()",
    "learning_phase": "the argument training of call()",
    "logsumexp": "keras.ops.logsumexp",
    "map_fn": "keras.ops.map",
    "pool2d": "keras.ops.max_pool or keras.ops.average_pool",
    "pool3d": "keras.ops.max_pool or keras.ops.average_pool",
    "print_tensor": "tf.print",
    "resize_images": "keras.ops.image.resize",
    "rnn": "keras.layers.RNN",
    "separable_conv2d": "keras.ops.separable_conv",
    "set_learning_phase": "the argument training of call()",
    "spatial_2d_padding": "keras.ops.pad",
    "spatial_3d_padding": "keras.ops.pad",
    "temporal_padding": "keras.ops.pad",
}


def backend_function(name: str) -> Any:
    """Returns a function of ``tf.keras.backend``.

    Raises:
        AttributeError: If it is not here. The message names what to write in its place.
    """
    if name in BACKEND_FUNCTIONS:
        return BACKEND_FUNCTIONS[name]
    hint = _OTHERS.get(name)
    use = "Look for it in keras.ops." if hint is None else f"Use {hint}."
    raise AttributeError(f"keras.backend, of Keras 3 on JAX, has no function {name!r}. {use}")
