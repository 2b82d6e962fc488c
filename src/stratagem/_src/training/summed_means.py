"""Warns of gradients that are too large, or too small, by the number of replicas."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.jaxpr.local_mean import is_global_share, is_local_mean
from stratagem._src.variables import frames
from stratagem._src.variables.frames import ReducedGradient, StateFrame

__all__ = ["warn_of_large_sums", "warn_of_small_means"]

_logger = logging.getLogger("stratagem")
_warned: set[str] = set()

_SUMMED_MEANS = (
    "The loss is a mean over the examples of one replica, and Optimizer %r sums the gradients of "
    "%d replicas: they are %d times as large as those of the global batch. Divide by the global "
    "batch size, with sg.nn.compute_average_loss(per_example_loss)%s."
)
_SUMMED_TWICE = (
    "The gradients given to Optimizer %r are all-reduced over %d replicas already, and it sums them over "
    "the replicas again: they are %d times as large as those of the global batch. Leave out the "
    "all_reduce, or pass skip_gradients_aggregation=True to apply_gradients%s."
)

_AVERAGED_SHARES = (
    "The loss is divided by the global batch size, as sg.nn.compute_average_loss does, and Optimizer %r "
    'has gradient_reduction="mean", which divides by the %d replicas again: the gradients are 1/%d of '
    "those of the global batch. Leave gradient_reduction out, or use the mean over the replica's own "
    "examples."
)


def warn_of_large_sums(
    name: str, gradients: Sequence[Any], num_replicas: int, *, has_option: bool = True
) -> None:
    """Logs once, in the first process, that gradients are too large by the number of replicas.

    Only if the traced program shows it. Gradients that ``value_and_grad`` or a tape returned are too large
    if their loss is a mean over the replica's own examples. Gradients that the replicas have all-reduced
    are too large if they are sums, or means of the gradients of such a loss. Eager steps are not traced.

    Args:
        name: The optimizer's name.
        gradients: The replica's gradients.
        num_replicas: Number of replicas over which they are summed.
        has_option: Whether the optimizer can average them instead.
    """
    frame = frames.current_frame()
    if frame is None:
        return
    for message, is_shown in ((_SUMMED_MEANS, _are_means), (_SUMMED_TWICE, _are_sums)):
        if message in _warned or not is_shown(frame, gradients, num_replicas):
            continue
        _warned.add(message)
        option = ""
        if has_option and message is _SUMMED_MEANS:
            option = ', or create the optimizer with gradient_reduction="mean"'
        if jax.process_index() == 0:
            _logger.warning(message, name, num_replicas, num_replicas, option)


def warn_of_small_means(name: str, gradients: Sequence[Any], num_replicas: int) -> None:
    """Logs once, in the first process, that gradients are divided by the number of replicas twice.

    Only if the traced program shows it.

    Args:
        name: The optimizer's name.
        gradients: The replica's gradients.
        num_replicas: Number of replicas over which they are averaged.
    """
    frame = frames.current_frame()
    if frame is None or _AVERAGED_SHARES in _warned:
        return
    if not any(is_global_share(loss, num_replicas) for loss in _losses(frame, gradients)):
        return
    _warned.add(_AVERAGED_SHARES)
    if jax.process_index() == 0:
        _logger.warning(_AVERAGED_SHARES, name, num_replicas, num_replicas)


def _losses(frame: StateFrame, gradients: Sequence[Any]) -> list[Any]:
    losses = {id(loss): loss for g in gradients if (loss := frame.loss_of(g)) is not None}
    return list(losses.values())


def _are_means(frame: StateFrame, gradients: Sequence[Any], num_replicas: int) -> bool:
    return any(is_local_mean(loss, num_replicas) for loss in _losses(frame, gradients))


def _are_sums(frame: StateFrame, gradients: Sequence[Any], num_replicas: int) -> bool:
    reduced = [found for g in gradients if (found := frame.reduced_gradient(g)) is not None]
    return any(_is_too_large(gradient, num_replicas) for gradient in reduced)


def _is_too_large(gradient: ReducedGradient, num_replicas: int) -> bool:
    averaged = any(
        math.isclose(divisor, round(divisor / num_replicas) * num_replicas, rel_tol=1e-5)
        for divisor in (*gradient.divisors, math.prod(gradient.divisors))
    )
    return not averaged or is_local_mean(gradient.loss, num_replicas)
