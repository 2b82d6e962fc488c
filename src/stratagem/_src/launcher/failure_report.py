"""The report of a failed job: the first failure in full, every other failure in one line."""

from __future__ import annotations

from collections.abc import Iterable

from stratagem._src.launcher.task_exit import TaskExit

__all__ = ["failure_excerpt", "failure_report"]

_LAST_LINES = 40
_LINE_CHARACTERS = 200
_TRACEBACK_STARTS = (
    "Traceback (most recent call last):",
    "  + Exception Group Traceback (most recent call last):",
    "Fatal Python error:",
)
# What JAX adds below the message of an error.
_NOTES_OF_JAX = ("--------------------", "For simplicity, JAX has removed its internal frames")
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def failure_excerpt(output: str) -> str:
    """Returns the last traceback of an output, with its chained tracebacks; otherwise the last lines.

    >>> from stratagem._src.launcher.failure_report import failure_excerpt
    >>> print(failure_excerpt("step 1\\nTraceback (most recent call last):\\nValueError: no\\n"))
    Traceback (most recent call last):
    ValueError: no
    """
    lines = output.rstrip().split("\n")
    starts = [n for n, line in enumerate(lines) if line.startswith(_TRACEBACK_STARTS)]
    if not starts:
        return "\n".join(lines[-_LAST_LINES:])
    start = starts.pop()
    while starts and any(line in _CHAIN for line in lines[starts[-1] : start]):
        start = starts.pop()
    return "\n".join(lines[start:])


def failure_report(first: TaskExit, others: Iterable[TaskExit]) -> str:
    """Returns the final message of a failed job."""
    lines = [first.describe() + _full(first.output)]
    lines += [other.describe() + _last_line(other) for other in others]
    return "\n".join(lines)


def _full(output: str) -> str:
    if not output.strip():
        return " and printed nothing."
    excerpt = "\n".join(f"    {line}".rstrip() for line in failure_excerpt(output).split("\n"))
    return f". The end of its output:\n{excerpt}"


def _last_line(task_exit: TaskExit) -> str:
    lines = [line.strip() for line in task_exit.output.splitlines()]
    said = [line for line in lines if line and not line.startswith(_NOTES_OF_JAX)]
    return f": {said[-1][:_LINE_CHARACTERS]}" if task_exit.failed and said else ""
