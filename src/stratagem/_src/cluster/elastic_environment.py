"""The environment variable and exit code of elastic jobs."""

from __future__ import annotations

from stratagem._src.cluster.environment_variables import is_set, read_integer

__all__ = ["MIN_WORKERS_VARIABLE", "RESTART_EXIT_CODE", "elastic_min_workers", "elastic_variables"]

MIN_WORKERS_VARIABLE = "STRATAGEM_MIN_WORKERS"

RESTART_EXIT_CODE = 75
"""The exit code of a worker that requests a restart: ``EX_TEMPFAIL`` of ``sysexits.h``."""


def elastic_variables(min_workers: int | None) -> dict[str, str]:
    """Returns the environment variables of the tasks of a job; none if the job is not elastic.

    >>> elastic_variables(2)
    {'STRATAGEM_MIN_WORKERS': '2'}
    """
    return {} if min_workers is None else {MIN_WORKERS_VARIABLE: str(min_workers)}


def elastic_min_workers() -> int | None:
    """Returns the minimum number of workers of an elastic job; ``None`` if the job is not elastic.

    Raises:
        EnvironmentVariableError: If ``STRATAGEM_MIN_WORKERS`` is not an integer.
    """
    if not is_set(MIN_WORKERS_VARIABLE):
        return None
    return read_integer(
        MIN_WORKERS_VARIABLE,
        "the minimum number of workers of an elastic job",
        "Set it to a whole number, or let 'stratagem run --workers MIN:MAX' do so.",
    )
