"""Whether the job that this process belongs to is elastic, as its launcher says."""

from __future__ import annotations

from stratagem._src.cluster.environment_variables import is_set, read_integer

__all__ = ["MIN_WORKERS_VARIABLE", "START_AGAIN", "elastic_min_workers", "elastic_variables"]

MIN_WORKERS_VARIABLE = "STRATAGEM_MIN_WORKERS"

START_AGAIN = 75
"""Exit code of a worker that asks to be started again; what ``sysexits.h`` calls a temporary failure."""


def elastic_variables(min_workers: int | None) -> dict[str, str]:
    """Returns what the tasks of a job find in their environment; nothing if it is not elastic.

    >>> elastic_variables(2)
    {'STRATAGEM_MIN_WORKERS': '2'}
    """
    return {} if min_workers is None else {MIN_WORKERS_VARIABLE: str(min_workers)}


def elastic_min_workers() -> int | None:
    """Returns how few workers may go on when others are lost; ``None`` if all must be there.

    Raises:
        EnvironmentVariableError: If ``STRATAGEM_MIN_WORKERS`` is no such number.
    """
    if not is_set(MIN_WORKERS_VARIABLE):
        return None
    return read_integer(
        MIN_WORKERS_VARIABLE,
        "how few workers may go on when others are lost",
        "Set it to a whole number, or let 'stratagem run --workers MIN:MAX' do so.",
    )
