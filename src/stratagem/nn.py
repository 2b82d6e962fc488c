"""``tf.nn``: layers, activations and losses; ``compute_average_loss`` for distributed training."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.array_sorting import (
    in_top_k,
    top_k,
)
from stratagem._src.tensorflow_api.math_pointwise import (
    sigmoid,
    tanh,
)
from stratagem._src.tensorflow_api.math_reductions import (
    zero_fraction,
)
from stratagem._src.tensorflow_api.math_special import (
    approx_max_k,
    approx_min_k,
    l2_normalize,
)
from stratagem._src.tensorflow_api.nn_activations import (
    crelu,
    elu,
    gelu,
    leaky_relu,
    log_softmax,
    relu,
    relu6,
    selu,
    silu,
    softmax,
    softplus,
    softsign,
    swish,
)
from stratagem._src.tensorflow_api.nn_convolution import (
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
    convolution,
    depthwise_conv2d,
    separable_conv2d,
)
from stratagem._src.tensorflow_api.nn_layers import (
    batch_normalization,
    bias_add,
    depth_to_space,
    embedding_lookup,
    moments,
    space_to_depth,
)
from stratagem._src.tensorflow_api.nn_losses import (
    l2_loss,
    log_poisson_loss,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from stratagem._src.tensorflow_api.nn_pooling import (
    avg_pool,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from stratagem._src.tensorflow_api.random_stateful import dropout
from stratagem._src.training.losses import compute_average_loss, scale_regularization_loss

__all__ = [
    "approx_max_k",
    "approx_min_k",
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_normalization",
    "bias_add",
    "compute_average_loss",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "convolution",
    "crelu",
    "depth_to_space",
    "depthwise_conv2d",
    "dropout",
    "elu",
    "embedding_lookup",
    "gelu",
    "in_top_k",
    "l2_loss",
    "l2_normalize",
    "leaky_relu",
    "log_poisson_loss",
    "log_softmax",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "moments",
    "relu",
    "relu6",
    "scale_regularization_loss",
    "selu",
    "separable_conv2d",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softplus",
    "softsign",
    "space_to_depth",
    "sparse_softmax_cross_entropy_with_logits",
    "swish",
    "tanh",
    "top_k",
    "weighted_cross_entropy_with_logits",
    "zero_fraction",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
