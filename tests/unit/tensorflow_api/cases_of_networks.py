"""``tf.nn``."""

import numpy as np
from compared_cases import case

X = np.sin(np.arange(2 * 5 * 6 * 2)).astype(np.float32).reshape(2, 5, 6, 2)
KERNEL = np.cos(np.arange(3 * 2 * 2 * 3)).astype(np.float32).reshape(3, 2, 2, 3)
SEQUENCE = np.sin(np.arange(2 * 7 * 2)).astype(np.float32).reshape(2, 7, 2)
LINE = np.cos(np.arange(3 * 2 * 2)).astype(np.float32).reshape(3, 2, 2)
VOLUME = np.sin(np.arange(1 * 4 * 4 * 4 * 1)).astype(np.float32).reshape(1, 4, 4, 4, 1)
KINKS = np.array([-1.0, 0.0, 1.0, 6.0], np.float32)
F = np.array([[0.5, -0.25, 0.75], [7.5, 0.9, -3.0]], np.float32)
LABELS = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], np.float32)
I = np.array([[1, -2, 9]], np.int32)  # noqa: E741
TABLE = np.arange(8, dtype=np.float32).reshape(4, 2)

_ACTIVATIONS = "relu relu6 elu selu gelu silu softplus softsign leaky_relu crelu sigmoid tanh log_softmax softmax"

CASES = [
    *[case(f"nn.{name}", F, gradient=True) for name in _ACTIVATIONS.split()],
    *[case(f"nn.{name}", I) for name in ("relu", "relu6", "leaky_relu", "elu", "gelu", "softmax")],
    case("nn.gelu", F, approximate=True, gradient=True),
    case("nn.silu", F, beta=0.5),
    case("nn.leaky_relu", F, alpha=0.1),
    case("nn.softmax", F, axis=0),
    case("nn.softmax", np.float32(1.0)),
    case("nn.conv2d", X, KERNEL, 1, "SAME", gradient=True),
    case("nn.conv2d", X, KERNEL, [1, 2, 2, 1], "VALID", gradient=True),
    case("nn.conv2d", X, KERNEL, 2, "SAME", dilations=1),
    case("nn.conv2d", X, KERNEL, 1, "SAME", dilations=[1, 2]),
    case("nn.conv2d", X, KERNEL, 1, [[0, 0], [1, 2], [0, 1], [0, 0]]),
    case("nn.conv2d", X, KERNEL[:, :, :1], 1, "VALID"),
    case("nn.conv2d", X, np.ones((2, 2, 3, 1), np.float32), 1, "VALID"),
    case("nn.conv2d", X, KERNEL, 1, "OTHER"),
    case("nn.conv1d", SEQUENCE, LINE, 2, "SAME", gradient=True),
    case("nn.conv3d", VOLUME, np.ones((2, 2, 2, 1, 2), np.float32), [1] * 5, "VALID"),
    case("nn.convolution", X, KERNEL, padding="SAME"),
    case("nn.depthwise_conv2d", X, KERNEL, [1, 1, 1, 1], "SAME", gradient=True),
    case("nn.depthwise_conv2d", X, KERNEL, [1, 2, 2, 1], "VALID"),
    case("nn.separable_conv2d", X, KERNEL, np.ones((1, 1, 6, 2), np.float32), [1] * 4, "SAME"),
    case(
        "nn.conv2d_transpose",
        X[:, :2, :3],
        KERNEL.transpose(0, 1, 3, 2),
        [2, 4, 6, 3],
        2,
        "SAME",
        gradient=True,
    ),
    case(
        "nn.conv2d_transpose",
        X[:, :2, :3],
        KERNEL.transpose(0, 1, 3, 2),
        [2, 5, 6, 3],
        [1, 2, 2, 1],
        "VALID",
    ),
    case("nn.max_pool2d", X, 2, 2, "VALID", gradient=True),
    case("nn.max_pool2d", X, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"),
    case("nn.max_pool", X, 3, 1, "SAME"),
    case("nn.avg_pool2d", X, 3, 2, "SAME", gradient=True),
    case("nn.avg_pool", X, 2, 2, "VALID"),
    case("nn.max_pool1d", SEQUENCE, 2, 2, "SAME"),
    case("nn.avg_pool1d", SEQUENCE, 3, 2, "SAME"),
    case("nn.max_pool3d", VOLUME, 2, 2, "VALID"),
    case("nn.avg_pool3d", VOLUME, 2, 2, "VALID"),
    case("nn.bias_add", X, np.array([1.0, -1.0], np.float32), gradient=True),
    case("nn.bias_add", X, np.ones(3, np.float32)),
    case(
        "nn.batch_normalization",
        F,
        F.mean(0),
        F.var(0),
        np.ones(3, np.float32),
        np.full(3, 2.0, np.float32),
        0.001,
        gradient=True,
    ),
    case("nn.batch_normalization", F, F.mean(0), F.var(0), None, None, 0.001),
    case("nn.moments", X, [0, 1, 2], gradient=True),
    case("nn.moments", X, [1], keepdims=True),
    case("nn.embedding_lookup", TABLE, [[1, 3], [0, 0]], gradient=True),
    case("nn.embedding_lookup", TABLE, [3], max_norm=2.0),
    case("nn.embedding_lookup", TABLE, [4]),
    case("nn.space_to_depth", X[:, :4], 2),
    case("nn.depth_to_space", np.concatenate([X, X], -1), 2, gradient=True),
    case("nn.l2_loss", F, gradient=True),
    case("nn.l2_loss", I),
    case("nn.l2_normalize", F, 1, gradient=True),
    case("nn.softmax_cross_entropy_with_logits", LABELS, F),
    case("nn.softmax_cross_entropy_with_logits", labels=LABELS, logits=F, axis=0),
    case("nn.sparse_softmax_cross_entropy_with_logits", [2, 0], F, gradient=True),
    case("nn.sparse_softmax_cross_entropy_with_logits", [3, 0], F),
    case("nn.sparse_softmax_cross_entropy_with_logits", LABELS, F),
    case("nn.sigmoid_cross_entropy_with_logits", labels=LABELS, logits=F, gradient=True),
    case("nn.sigmoid_cross_entropy_with_logits", LABELS, F[:1]),
    case("nn.weighted_cross_entropy_with_logits", LABELS, F, 2.0, gradient=True),
    case("nn.log_poisson_loss", np.array([0.5, 3.0], np.float32), np.array([0.1, 1.0], np.float32)),
    case(
        "nn.log_poisson_loss",
        np.array([0.5, 3.0], np.float32),
        np.array([0.1, 1.0], np.float32),
        compute_full_loss=True,
    ),
    case("nn.top_k", F, 2),
    case("nn.in_top_k", [0, 2], F, 1),
    case("nn.zero_fraction", F),
    *[
        case(f"nn.{name}", KINKS, gradient=True)
        for name in ("relu", "relu6", "elu", "selu", "leaky_relu", "softplus")
    ],
    case(
        "nn.sigmoid_cross_entropy_with_logits",
        labels=np.ones(4, np.float32),
        logits=KINKS,
        gradient=True,
    ),
    case(
        "nn.sigmoid_cross_entropy_with_logits",
        labels=np.zeros(4, np.float32),
        logits=KINKS,
        gradient=True,
    ),
]
