"""When Python runs the garbage collector."""

import sys

__all__ = ["GC_RUNS_ON_ALLOCATION"]

GC_RUNS_ON_ALLOCATION = sys.version_info < (3, 12)
"""Whether any allocation, also within C code, can start a collection; otherwise only bytecode does.

Finalizers and the callbacks of a collection are Python code, after which pending signal handlers run.
"""
