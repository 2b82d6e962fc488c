"""``tf.nn`` and ``tf.image``."""

from stratagem._src.core.tensorflow_names.mathematics import IN_TOP_K, L2_NORMALIZE

__all__ = ["NETWORKS"]

_SAME_NAMES = "elu log_softmax relu relu6 selu sigmoid silu softmax softplus swish tanh"
_ALIKE = {name: f"jax.nn.{name}" for name in _SAME_NAMES.split()}
_AVERAGE = "flax.linen.avg_pool(x, window, strides, padding, count_include_pad=False)"
_MAXIMUM = "flax.linen.max_pool(x, window, strides, padding), or jax.lax.reduce_window"
_CONVOLUTION = (
    "jax.lax.conv_general_dilated(x, filters, strides, padding, dimension_numbers=({}, {}, {}))"
)
_CONVOLUTION_2D = _CONVOLUTION.format("'NHWC'", "'HWIO'", "'NHWC'")
_SMALL = {
    "avg_pool": _AVERAGE,
    "avg_pool2d": _AVERAGE,
    "batch_normalization": "(x - mean) * jax.lax.rsqrt(variance + epsilon) * scale + offset",
    "bias_add": "x + bias",
    "conv1d": _CONVOLUTION.format("'NWC'", "'WIO'", "'NWC'"),
    "conv2d": _CONVOLUTION_2D,
    "conv2d_transpose": (
        "jax.lax.conv_transpose(x, filters, strides, padding, transpose_kernel=True)"
    ),
    "conv3d": _CONVOLUTION.format("'NDHWC'", "'DHWIO'", "'NDHWC'"),
    "convolution": _CONVOLUTION_2D,
    "ctc_loss": "optax.ctc_loss",
    "depthwise_conv2d": (
        "jax.lax.conv_general_dilated(x, filters.reshape(height, width, 1, -1), strides, padding, "
        "dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count=channels)"
    ),
    "dropout": (
        "jax.numpy.where(jax.random.bernoulli(key, keep, x.shape), x / keep, 0), with a key for each "
        "replica from jax.random.fold_in"
    ),
    "embedding_lookup": "table[ids], also if table is an sg.Variable on parameter servers",
    "gelu": "jax.nn.gelu(x, approximate=False)",
    "in_top_k": IN_TOP_K,
    "l2_loss": "jax.numpy.sum(jax.numpy.square(x)) / 2",
    "l2_normalize": L2_NORMALIZE,
    "leaky_relu": "jax.nn.leaky_relu(x, 0.2)",
    "max_pool": _MAXIMUM,
    "max_pool2d": _MAXIMUM,
    "moments": "(jax.numpy.mean(x, axes), jax.numpy.var(x, axes))",
    "sigmoid_cross_entropy_with_logits": "optax.sigmoid_binary_cross_entropy(logits, labels)",
    "softmax_cross_entropy_with_logits": "optax.softmax_cross_entropy(logits, labels)",
    "softsign": "jax.nn.soft_sign",
    "sparse_softmax_cross_entropy_with_logits": (
        "optax.softmax_cross_entropy_with_integer_labels(logits, labels)"
    ),
    "top_k": "jax.lax.top_k(x, k)",
    "zero_fraction": "jax.numpy.mean(x == 0)",
}
_IMAGE = {
    "convert_image_dtype": "x.astype(sg.float32) / 255, of bytes",
    "flip_left_right": "jax.numpy.flip(x, axis=-2)",
    "flip_up_down": "jax.numpy.flip(x, axis=-3)",
    "random_flip_left_right": (
        "jax.numpy.where(jax.random.bernoulli(key), jax.numpy.flip(x, axis=-2), x)"
    ),
    "resize": "jax.image.resize(x, shape, 'bilinear', antialias=False), where shape is that of the result",
    "rot90": "jax.numpy.rot90(x, axes=(-3, -2))",
    "transpose": "jax.numpy.swapaxes(x, -3, -2)",
}

NETWORKS: dict[str, str] = {f"nn.{name}": text for name, text in (_ALIKE | _SMALL).items()} | {
    f"image.{name}": text for name, text in _IMAGE.items()
}
