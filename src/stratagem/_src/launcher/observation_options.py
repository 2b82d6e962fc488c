"""``ObservationOptions``: how a job is observed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOT_OBSERVED", "ObservationOptions"]


@dataclass(frozen=True)
class ObservationOptions:
    """How a job is observed by the launcher that leads it.

    Attributes:
        name: Of the job.
        events: The file for its events, if any.
        dashboard: Where a page shows it, as ``host:port``, if anywhere.
        opentelemetry: Whether it is exported as metrics of OpenTelemetry.
    """

    name: str = ""
    events: str | None = None
    dashboard: str | None = None
    opentelemetry: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether the job is observed at all."""
        return self.events is not None or self.dashboard is not None or self.opentelemetry


NOT_OBSERVED = ObservationOptions()
