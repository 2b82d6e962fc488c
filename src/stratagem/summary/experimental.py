"""``tf.summary.experimental``: the default step of summaries."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.telemetry.summary.recording_state import get_step, set_step

__all__ = ["get_step", "set_step"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
