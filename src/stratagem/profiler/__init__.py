"""What all processes of a job do, recorded and put on one time line; as ``tf.profiler``."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.profiling.job.job_profile import Profile, start, stop
from stratagem._src.profiling.job.trace import Trace
from stratagem._src.profiling.task.options import ProfilerOptions
from stratagem.profiler import experimental

__all__ = ["Profile", "ProfilerOptions", "Trace", "experimental", "start", "stop"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
