"""``MonitoringOptions``: how a job is monitored."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.telemetry.monitoring.dashboard.page_certificate import PageCertificate

__all__ = ["NO_MONITORING", "MonitoringOptions"]


@dataclass(frozen=True)
class MonitoringOptions:
    """How the launcher that leads a job monitors it.

    Attributes:
        name: The name of the job.
        events: The file for its events, if any.
        dashboard: The address of the dashboard as ``host:port``, if there is one.
        opentelemetry: Whether to export OpenTelemetry metrics.
        certificate: The certificate of the dashboard; ``None`` for plain HTTP.
    """

    name: str = ""
    events: str | None = None
    dashboard: str | None = None
    opentelemetry: bool = False
    certificate: PageCertificate | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether the job is monitored at all."""
        return self.events is not None or self.dashboard is not None or self.opentelemetry


NO_MONITORING = MonitoringOptions()
