"""Warns of a loss that is averaged per replica while its gradients are summed over the replicas."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.jaxpr.local_mean import is_local_mean
from stratagem._src.variables import frames

__all__ = ["warn_of_summed_means"]

_logger = logging.getLogger("stratagem")
_warned: list[str] = []


def warn_of_summed_means(
    name: str, gradients: Sequence[Any], num_replicas: int, *, has_option: bool = True
) -> None:
    """Logs once, in the first process, that gradients are too large by the number of replicas.

    Only if the traced program shows it: gradients that ``value_and_grad`` or a tape returned for a loss
    which is a mean over the replica's own examples, passed on unchanged. Eager steps are not traced.

    Args:
        name: The optimizer's name.
        gradients: The replica's gradients.
        num_replicas: Number of replicas over which they are summed.
        has_option: Whether the optimizer can average them instead.
    """
    frame = frames.current_frame()
    if _warned or frame is None:
        return
    losses = {id(loss): loss for g in gradients if (loss := frame.loss_of(g)) is not None}
    if not any(is_local_mean(loss, num_replicas) for loss in losses.values()):
        return
    _warned.append(name)
    other = ', or create the optimizer with gradient_reduction="mean"' if has_option else ""
    if jax.process_index() == 0:
        _logger.warning(
            "The loss is a mean over the examples of one replica, and Optimizer %r sums the gradients of "
            "%d replicas: they are %d times as large as those of the global batch. Divide by the global "
            "batch size, with sg.nn.compute_average_loss(per_example_loss)%s.",
            name,
            num_replicas,
            num_replicas,
            other,
        )
