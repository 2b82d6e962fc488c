"""``tf.image``: drawing bounding boxes, and non-maximum suppression."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, TracedValueError
from stratagem._src.core.types import ArrayLike, IntegerLike, ScalarLike, Tensor
from stratagem._src.tensorflow_api.conversion import as_tensor, concrete, integer
from stratagem._src.tensorflow_api.image_arrays import as_image

__all__ = [
    "combined_non_max_suppression",
    "draw_bounding_boxes",
    "non_max_suppression",
    "non_max_suppression_with_scores",
]

_PALETTE = (
    (1, 1, 0, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0.5, 0, 0.5, 1),
    (0.5, 0.5, 0, 1), (0.5, 0, 0, 1), (0, 0, 0.5, 1), (0, 1, 1, 1), (1, 0, 1, 1),
)  # fmt: skip


def non_max_suppression(
    boxes: ArrayLike,
    scores: ArrayLike,
    max_output_size: IntegerLike,
    iou_threshold: ScalarLike = 0.5,
    score_threshold: ScalarLike = float("-inf"),
    name: str | None = None,
) -> jax.Array:
    """Returns the indices of the boxes with the best scores that do not overlap much, best first.

    The arguments must not be traced, because the number of boxes depends on them. In compiled code use
    ``combined_non_max_suppression``, which returns a fixed number.

    >>> non_max_suppression([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]], [0.9, 0.8], 5)
    Array([0], dtype=int32)
    """
    return non_max_suppression_with_scores(
        boxes, scores, max_output_size, iou_threshold, score_threshold
    )[0]


def non_max_suppression_with_scores(
    boxes: ArrayLike,
    scores: ArrayLike,
    max_output_size: IntegerLike,
    iou_threshold: ScalarLike = 0.5,
    score_threshold: ScalarLike = float("-inf"),
    soft_nms_sigma: float = 0.0,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns the indices of the selected boxes, and their scores; see ``non_max_suppression``.

    Args:
        boxes: ``[y1, x1, y2, x2]`` of each box.
        scores: The score of each box.
        max_output_size: The maximum number of boxes.
        iou_threshold: The maximum intersection over union with a better box.
        score_threshold: Boxes need a higher score than this.
        soft_nms_sigma: If positive, overlapping boxes lose score instead (soft NMS).
        name: Ignored.

    >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]]
    >>> non_max_suppression_with_scores(boxes, [0.9, 0.8], 5, 0.95)[1]
    Array([0.9, 0.8], dtype=float32)
    """
    op = "image.non_max_suppression"
    rectangles, values = concrete(boxes), concrete(scores)
    if rectangles is None or values is None:
        raise TracedValueError(
            f"tf.{op} needs arguments that are not traced: the number of boxes depends on them. In "
            "compiled code use tf.image.combined_non_max_suppression, which returns a fixed number."
        )
    if rectangles.ndim != 2 or rectangles.shape[1] != 4 or values.shape != rectangles.shape[:1]:
        raise InvalidArgumentError(
            f"tf.{op} needs boxes of shape [n, 4] and n scores, got {rectangles.shape} and "
            f"{values.shape}."
        )
    limit, threshold = float(concrete(iou_threshold)), float(concrete(score_threshold))  # type: ignore[arg-type]
    if not 0 <= limit <= 1:
        raise InvalidArgumentError(f"iou_threshold of tf.{op} must be in [0, 1], got {limit}.")
    max_boxes = integer(op, "max_output_size", max_output_size)
    left = np.array(values, np.float32)
    overlaps = _overlaps(np, rectangles.astype(np.float32))
    waiting = np.flatnonzero(left > threshold)
    chosen: list[int] = []
    found: list[float] = []
    while len(chosen) < max_boxes and len(waiting):
        best = waiting[np.argmax(left[waiting])]  # the first of equal scores
        chosen.append(int(best))
        found.append(float(left[best]))
        waiting = waiting[waiting != best]
        shared = overlaps[best, waiting]
        if soft_nms_sigma > 0:
            # Overlap with a selected box lowers the score; above the limit the box is dropped.
            left[waiting] *= np.where(shared <= limit, np.exp(-0.5 / soft_nms_sigma * shared**2), 0)
            waiting = waiting[(left[waiting] > threshold) & (shared <= limit)]
        else:
            waiting = waiting[shared <= limit]
    return as_tensor(np.array(chosen, np.int32)), as_tensor(np.array(found, values.dtype))


def _overlaps(xp: ModuleType, boxes: Tensor) -> Tensor:
    """Returns the intersection over union of each pair of boxes."""
    low = xp.minimum(boxes[..., :2], boxes[..., 2:])
    high = xp.maximum(boxes[..., :2], boxes[..., 2:])
    areas = xp.prod(high - low, -1)
    sides = xp.minimum(high[..., :, None, :], high[..., None, :, :]) - xp.maximum(
        low[..., :, None, :], low[..., None, :, :]
    )
    common = xp.prod(xp.maximum(sides, 0), -1)
    union = areas[..., :, None] + areas[..., None, :] - common
    empty = (areas[..., :, None] <= 0) | (areas[..., None, :] <= 0)
    return xp.where(
        empty, xp.zeros_like(common), common / xp.where(empty, xp.ones_like(union), union)
    )


def combined_non_max_suppression(
    boxes: ArrayLike,
    scores: ArrayLike,
    max_output_size_per_class: IntegerLike,
    max_total_size: IntegerLike,
    iou_threshold: float = 0.5,
    score_threshold: float = float("-inf"),
    pad_per_class: bool = False,
    clip_boxes: bool = True,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns boxes, scores, classes and the number of boxes of each image, best first, zero-padded.

    Args:
        boxes: Boxes of shape ``[batch, n, classes or 1, 4]``.
        scores: Scores of shape ``[batch, n, classes]``.
        max_output_size_per_class: The maximum number of boxes of a class.
        max_total_size: The maximum number of boxes of an image.
        iou_threshold: See ``non_max_suppression``.
        score_threshold: See ``non_max_suppression``.
        pad_per_class: Whether to pad to ``max_output_size_per_class * classes`` if that is less than
            ``max_total_size``.
        clip_boxes: Whether to clip coordinates to [0, 1].
        name: Ignored.

    >>> boxes, scores = np.array([[[[0, 0, 1, 1]]]], np.float32), np.array([[[0.5]]], np.float32)
    >>> combined_non_max_suppression(boxes, scores, 1, 2)[1]
    Array([[0.5, 0. ]], dtype=float32)
    """
    op = "image.combined_non_max_suppression"
    boxes, scores = as_tensor(boxes), as_tensor(scores)
    per_class = integer(op, "max_output_size_per_class", max_output_size_per_class)
    total = integer(op, "max_total_size", max_total_size)
    if boxes.ndim != 4 or scores.ndim != 3 or boxes.shape[2] not in (1, scores.shape[2]):
        raise InvalidArgumentError(
            f"tf.{op} needs boxes of [batch, n, classes or 1, 4] and scores of [batch, n, classes], got "
            f"{boxes.shape} and {scores.shape}."
        )
    if per_class <= 0 or total <= 0:
        raise InvalidArgumentError(
            f"The sizes of tf.{op} must be positive, got {per_class}, {total}."
        )
    classes, count = scores.shape[2], scores.shape[1]
    if pad_per_class:
        total = min(total, per_class * classes)
    by_class = jnp.broadcast_to(boxes, (*boxes.shape[:2], classes, 4)).swapaxes(1, 2)

    def chosen(rectangles: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the indices and scores of the best boxes of one class; -inf where there is none."""
        overlaps = _overlaps(jnp, rectangles)

        def step(left: Tensor, _: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            best = jnp.argmax(left)
            found = (best, left[best])
            left = jnp.where(overlaps[best] > iou_threshold, -jnp.inf, left)
            return left.at[best].set(-jnp.inf), found

        left = jnp.where(values > score_threshold, values, -jnp.inf)
        _, found = jax.lax.scan(step, left, None, length=min(per_class, count))
        return found

    numbers, found = jax.vmap(jax.vmap(chosen))(by_class, scores.swapaxes(1, 2))
    taken = jnp.take_along_axis(by_class, numbers[..., None], 2)
    kinds = jnp.broadcast_to(jnp.arange(classes)[None, :, None], found.shape)
    flat = [x.reshape(x.shape[0], -1, *x.shape[3:]) for x in (taken, found, kinds)]
    order = jnp.argsort(-flat[1], axis=1, stable=True)[:, :total]
    missing = total - order.shape[1]
    results = []
    valid = jnp.take_along_axis(flat[1], order, 1) > -jnp.inf
    for x in flat:
        index, mask = (order[..., None], valid[..., None]) if x.ndim == 3 else (order, valid)
        best = jnp.where(mask, jnp.take_along_axis(x, index, 1), 0).astype(jnp.float32)
        results.append(jnp.pad(best, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2)))
    if clip_boxes:
        results[0] = jnp.clip(results[0], 0, 1)
    return results[0], results[1], results[2], valid.sum(1).astype(jnp.int32)


def draw_bounding_boxes(
    images: ArrayLike, boxes: ArrayLike, colors: ArrayLike, name: str | None = None
) -> jax.Array:
    """Draws a one-pixel line around each box.

    Args:
        images: A batch of images.
        boxes: ``[batch, n, 4]``: ``[y1, x1, y2, x2]`` as fractions of the image size.
        colors: Colors that the boxes use in turn, one per row; ``None`` uses ten default colors.
        name: Ignored.

    >>> draw_bounding_boxes(np.zeros((1, 3, 3, 1), np.float32), [[[0.0, 0.0, 1.0, 1.0]]], [[1.0]]).sum()
    Array(8., dtype=float32)
    """
    result = as_tensor(as_image("draw_bounding_boxes", images, ranks=(4,))[1])
    boxes = as_tensor(boxes)
    height, width, depth = result.shape[1:]
    given = concrete(colors) if colors is not None else None
    palette = np.asarray(_PALETTE if given is None or not given.size else given, np.float32)
    if depth == 1 and (given is None or not given.size):
        palette = np.ones((1, 1), np.float32)
    if boxes.ndim != 3 or boxes.shape[-1] != 4:
        raise InvalidArgumentError(
            f"boxes of tf.image.draw_bounding_boxes must have shape [batch, n, 4], got {boxes.shape}."
        )
    if palette.shape[1] < depth:
        raise InvalidArgumentError(
            f"colors of tf.image.draw_bounding_boxes must have {depth} channels, got {palette.shape[1]}."
        )
    scale = jnp.array([height - 1, width - 1, height - 1, width - 1], jnp.float32)
    edges = (boxes.astype(jnp.float32) * scale).astype(jnp.int32)
    rows, columns = jnp.arange(height)[None, :, None], jnp.arange(width)[None, None, :]
    for number in range(boxes.shape[1]):
        top, left, bottom, right = (edges[:, number, k, None, None] for k in range(4))
        across = (rows >= top) & (rows <= bottom)
        along = (columns >= left) & (columns <= right)
        line = (along & ((rows == top) | (rows == bottom))) | (
            across & ((columns == left) | (columns == right))
        )
        line &= (bottom >= top) & (right >= left)
        color = palette[number % len(palette), :depth].astype(result.dtype)
        result = jnp.where(line[..., None], color, result)
    return result
