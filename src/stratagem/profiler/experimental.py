"""``tf.profiler.experimental``: TensorFlow's names of ``stratagem.profiler``."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.profiling.job.job_profile import Profile, start, stop
from stratagem._src.profiling.job.trace import Trace
from stratagem._src.profiling.task.options import ProfilerOptions

__all__ = ["Profile", "ProfilerOptions", "Trace", "start", "stop"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
