"""Integrations with other libraries, one module each."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from stratagem.integrations import ray

__all__ = ["ray"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, {"ray": ("stratagem.integrations.ray", None)})
