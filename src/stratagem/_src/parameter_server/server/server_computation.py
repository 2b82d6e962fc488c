"""The JAX settings of computations on a parameter server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from stratagem._src.jax_compat.host_device import on_host
from stratagem._src.mesh.backend_start import prepare_backend

__all__ = ["on_server"]


@contextlib.contextmanager
def on_server(dtype: np.dtype[Any]) -> Iterator[None]:
    """Runs JAX on the CPU, where the variables are, and enables x64 if ``dtype`` needs it."""
    prepare_backend()
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_host())
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            stack.enter_context(jax.enable_x64(True))
        yield
