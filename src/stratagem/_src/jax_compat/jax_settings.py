"""Thread-local JAX settings that change what a step computes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax

__all__ = [
    "DEBUG_INFS",
    "DEBUG_NANS",
    "DEFAULT_PRNG_IMPL",
    "applied",
    "checks_results",
    "current_settings",
    "jit_is_disabled",
]

# Settings that are not part of the cache key of jax.jit: it does not retrace a function when one changes.
# ``.value`` is the value of this thread, and takes a quarter of the time of jax.config.
DEBUG_NANS: Any = jax.debug_nans
DEBUG_INFS: Any = jax.debug_infs
DEFAULT_PRNG_IMPL: Any = jax.default_prng_impl

_SETTINGS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("jax_enable_x64", jax.enable_x64),
    ("jax_default_matmul_precision", jax.default_matmul_precision),
    ("jax_numpy_dtype_promotion", jax.numpy_dtype_promotion),
    ("jax_numpy_rank_promotion", jax.numpy_rank_promotion),
    ("jax_default_prng_impl", jax.default_prng_impl),
    ("jax_debug_nans", jax.debug_nans),
    ("jax_debug_infs", jax.debug_infs),
    ("jax_disable_jit", jax.disable_jit),
)


_read = operator.attrgetter(*(name for name, _ in _SETTINGS))


def current_settings() -> tuple[Any, ...]:
    """Returns this thread's settings, to compare or to apply in another thread."""
    settings: tuple[Any, ...] = _read(jax.config)
    return settings


def checks_results() -> bool:
    """Returns whether JAX checks every result for NaN or infinity, and raises if it finds one."""
    return bool(DEBUG_NANS.value or DEBUG_INFS.value)


def jit_is_disabled() -> bool:
    """Returns whether ``jax.jit`` runs functions without compiling them."""
    return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


@contextlib.contextmanager
def applied(settings: tuple[Any, ...]) -> Iterator[None]:
    """Applies the settings of another thread in the block."""
    here = current_settings()
    if here == settings:
        yield
        return
    with contextlib.ExitStack() as stack:
        for (_, change), mine, theirs in zip(_SETTINGS, here, settings, strict=True):
            if mine != theirs:
                stack.enter_context(change(theirs))
        yield
