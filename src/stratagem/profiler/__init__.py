"""``tf.profiler``: records all processes of a job on one timeline."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.profiling.job.job_profile import Profile, start, stop
from stratagem._src.profiling.job.trace import Trace
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem.profiler import experimental

__all__ = ["Profile", "ProfilerOptions", "Trace", "experimental", "start", "stop"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
