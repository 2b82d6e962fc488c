"""``tf.image``: boxes around objects, drawn, and chosen by non-maximum suppression."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, TracedValueError
from stratagem._src.core.types import ArrayLike, IntegerLike, ScalarLike, Tensor
from stratagem._src.tensorflow_api.conversion import integer, known, tensor
from stratagem._src.tensorflow_api.image_arrays import opened

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
    """Returns the numbers of the boxes with the best scores that overlap little, best first.

    On known values only: how many there are depends on them. ``combined_non_max_suppression`` gives a fixed
    number, and runs in compiled code.

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
    """Returns the numbers of the chosen boxes, and their scores; see ``non_max_suppression``.

    Args:
        boxes: ``[y1, x1, y2, x2]`` of each.
        scores: Of each.
        max_output_size: How many at most.
        iou_threshold: Boxes that overlap with a better one by more, relative to their union, are left out.
        score_threshold: Boxes with a score that is not above are left out.
        soft_nms_sigma: If positive, boxes that overlap lose score instead.
        name: Ignored.

    >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]]
    >>> non_max_suppression_with_scores(boxes, [0.9, 0.8], 5, 0.95)[1]
    Array([0.9, 0.8], dtype=float32)
    """
    op = "image.non_max_suppression"
    rectangles, values = known(boxes), known(scores)
    if rectangles is None or values is None:
        raise TracedValueError(
            f"tf.{op} needs values that are known: how many boxes it returns depends on them. In compiled "
            "code use tf.image.combined_non_max_suppression, which returns a fixed number."
        )
    if rectangles.ndim != 2 or rectangles.shape[1] != 4 or values.shape != rectangles.shape[:1]:
        raise InvalidArgumentError(
            f"tf.{op} needs boxes of the shape [n, 4] and n scores, got {rectangles.shape} and "
            f"{values.shape}."
        )
    limit, least = float(known(iou_threshold)), float(known(score_threshold))  # type: ignore[arg-type]
    if not 0 <= limit <= 1:
        raise InvalidArgumentError(f"iou_threshold of tf.{op} must be in [0, 1], got {limit}.")
    most = integer(op, "max_output_size", max_output_size)
    left = np.array(values, np.float32)
    overlaps = _overlaps(np, rectangles.astype(np.float32))
    waiting = np.flatnonzero(left > least)
    chosen: list[int] = []
    found: list[float] = []
    while len(chosen) < most and len(waiting):
        best = waiting[np.argmax(left[waiting])]  # of equal ones the first
        chosen.append(int(best))
        found.append(float(left[best]))
        waiting = waiting[waiting != best]
        shared = overlaps[best, waiting]
        if soft_nms_sigma > 0:
            # A box's own overlap with each chosen one lowers its score; above the limit it is out.
            left[waiting] *= np.where(shared <= limit, np.exp(-0.5 / soft_nms_sigma * shared**2), 0)
            waiting = waiting[(left[waiting] > least) & (shared <= limit)]
        else:
            waiting = waiting[shared <= limit]
    return tensor(np.array(chosen, np.int32)), tensor(np.array(found, values.dtype))


def _overlaps(xp: ModuleType, boxes: Tensor) -> Tensor:
    """Returns of each pair of boxes their intersection divided by their union."""
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
    """Returns boxes, scores, classes and their number for each image, the best first, padded with zeros.

    Args:
        boxes: Of the shape ``[batch, n, classes or 1, 4]``.
        scores: Of the shape ``[batch, n, classes]``.
        max_output_size_per_class: How many of a class at most.
        max_total_size: How many of an image at most.
        iou_threshold: See ``non_max_suppression``.
        score_threshold: See ``non_max_suppression``.
        pad_per_class: Whether there are ``max_output_size_per_class * classes`` places if that is less than
            ``max_total_size``.
        clip_boxes: Whether coordinates are kept in [0, 1].
        name: Ignored.

    >>> boxes, scores = np.array([[[[0, 0, 1, 1]]]], np.float32), np.array([[[0.5]]], np.float32)
    >>> combined_non_max_suppression(boxes, scores, 1, 2)[1]
    Array([[0.5, 0. ]], dtype=float32)
    """
    op = "image.combined_non_max_suppression"
    boxes, scores = tensor(boxes), tensor(scores)
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
        """Returns the numbers and scores of the best of one class; -inf where there is none."""
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
    """Returns images with a line of one pixel around each box.

    Args:
        images: A batch.
        boxes: ``[batch, n, 4]``: ``[y1, x1, y2, x2]`` in parts of the image.
        colors: One row for each box in turn; ``None`` stands for ten colors.
        name: Ignored.

    >>> draw_bounding_boxes(np.zeros((1, 3, 3, 1), np.float32), [[[0.0, 0.0, 1.0, 1.0]]], [[1.0]]).sum()
    Array(8., dtype=float32)
    """
    result = tensor(opened("draw_bounding_boxes", images, ranks=(4,))[1])
    boxes = tensor(boxes)
    height, width, depth = result.shape[1:]
    given = known(colors) if colors is not None else None
    palette = np.asarray(_PALETTE if given is None or not given.size else given, np.float32)
    if depth == 1 and (given is None or not given.size):
        palette = np.ones((1, 1), np.float32)
    if boxes.ndim != 3 or boxes.shape[-1] != 4:
        raise InvalidArgumentError(
            f"boxes of tf.image.draw_bounding_boxes must be of [batch, n, 4], got {boxes.shape}."
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
