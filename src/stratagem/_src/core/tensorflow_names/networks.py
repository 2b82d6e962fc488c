"""``tf.nn`` and ``tf.image``."""

__all__ = ["NETWORKS"]

_SAME_NAMES = "elu log_softmax relu relu6 selu sigmoid silu softmax softplus swish tanh"
_ALIKE = {name: f"jax.nn.{name}" for name in _SAME_NAMES.split()}
_POOL = "flax.linen.{}, or jax.lax.reduce_window"
_SMALL = {
    "avg_pool": _POOL.format("avg_pool"),
    "avg_pool2d": _POOL.format("avg_pool"),
    "batch_normalization": "(x - mean) * jax.lax.rsqrt(variance + epsilon) * scale + offset",
    "bias_add": "x + bias",
    "conv1d": "jax.lax.conv_general_dilated",
    "conv2d": (
        "jax.lax.conv_general_dilated(x, filters, strides, padding, "
        "dimension_numbers=('NHWC', 'HWIO', 'NHWC'))"
    ),
    "conv2d_transpose": "jax.lax.conv_transpose",
    "conv3d": "jax.lax.conv_general_dilated",
    "convolution": "jax.lax.conv_general_dilated",
    "ctc_loss": "optax.ctc_loss",
    "depthwise_conv2d": "jax.lax.conv_general_dilated(..., feature_group_count=channels)",
    "dropout": (
        "jax.numpy.where(jax.random.bernoulli(key, keep, x.shape), x / keep, 0), with a key for each "
        "replica from jax.random.fold_in"
    ),
    "embedding_lookup": "table[ids], also if table is an sg.Variable on parameter servers",
    "gelu": "jax.nn.gelu(x, approximate=False)",
    "in_top_k": "(jax.lax.top_k(predictions, k)[1] == targets[:, None]).any(axis=1)",
    "l2_loss": "jax.numpy.sum(jax.numpy.square(x)) / 2",
    "l2_normalize": "x / jax.numpy.linalg.norm(x, axis=axis, keepdims=True)",
    "leaky_relu": "jax.nn.leaky_relu(x, 0.2)",
    "max_pool": _POOL.format("max_pool"),
    "max_pool2d": _POOL.format("max_pool"),
    "moments": "(jax.numpy.mean(x, axes), jax.numpy.var(x, axes))",
    "sigmoid_cross_entropy_with_logits": "optax.sigmoid_binary_cross_entropy(logits, labels)",
    "softmax_cross_entropy_with_logits": "optax.softmax_cross_entropy(logits, labels)",
    "softsign": "jax.nn.soft_sign",
    "sparse_softmax_cross_entropy_with_logits": (
        "optax.softmax_cross_entropy_with_integer_labels(logits, labels)"
    ),
    "top_k": "jax.lax.top_k",
    "zero_fraction": "jax.numpy.mean(x == 0)",
}
_IMAGE = {
    "convert_image_dtype": "x.astype(sg.float32) / 255",
    "flip_left_right": "jax.numpy.flip(x, axis=-2)",
    "flip_up_down": "jax.numpy.flip(x, axis=-3)",
    "random_flip_left_right": (
        "jax.numpy.where(jax.random.bernoulli(key), jax.numpy.flip(x, axis=-2), x)"
    ),
    "resize": "jax.image.resize(x, shape, method)",
    "rot90": "jax.numpy.rot90",
    "transpose": "jax.numpy.swapaxes(x, -3, -2)",
}

NETWORKS: dict[str, str] = {f"nn.{name}": text for name, text in (_ALIKE | _SMALL).items()} | {
    f"image.{name}": text for name, text in _IMAGE.items()
}
