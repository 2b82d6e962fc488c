"""``OpenTelemetryMetrics``: exports the state of a running job as OpenTelemetry metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.extras import install_hint
from stratagem._src.core.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics.export import MetricReader

__all__ = ["OpenTelemetryMetrics"]

_SCOPE = "stratagem"
_STEP_PARTS = ("input", "compute", "communication", "waiting", "other")

_Values = Iterator[tuple[float, dict[str, str]]]


class _Metric(NamedTuple):
    """A metric: its name, unit and description, and its values for one task, with attributes."""

    name: str
    unit: str
    description: str
    values: Callable[[Mapping[str, Any]], _Values]
    is_counter: bool = False


def _of_task(field: str) -> Callable[[Mapping[str, Any]], _Values]:
    def values(task: Mapping[str, Any]) -> _Values:
        if task[field] is not None:
            yield task[field], {}

    return values


def _step_parts(task: Mapping[str, Any]) -> _Values:
    for part in _STEP_PARTS if task["step"] else ():
        yield task["step"][part], {"stratagem.part": part}


def _reported(task: Mapping[str, Any]) -> _Values:
    for name, value in task["reported"].items():
        yield value, {"stratagem.name": name}


def _component_metrics(task: Mapping[str, Any]) -> _Values:
    for part, metrics in task["figures"].items():
        for name, value in metrics.items():
            yield value, {"stratagem.part": part, "stratagem.name": name}


_METRICS = (
    _Metric("stratagem.task.steps", "{step}", "Steps of a process.", _of_task("steps"), True),
    _Metric(
        "stratagem.task.examples", "{example}", "Examples of a process.", _of_task("examples"), True
    ),
    _Metric("stratagem.task.starts", "{start}", "Starts of a task.", _of_task("starts")),
    _Metric("stratagem.task.memory", "By", "Memory of a process.", _of_task("memory")),
    _Metric("stratagem.task.cpu", "{core}", "CPU cores that a process uses.", _of_task("cpu")),
    _Metric("stratagem.step.duration", "s", "Where a mean step's time goes.", _step_parts),
    _Metric("stratagem.reported", "1", "Metrics of the program, such as the loss.", _reported),
    _Metric(
        "stratagem.figure", "1", "Metrics of a coordinator or parameter server.", _component_metrics
    ),
)


class OpenTelemetryMetrics:
    """Exports OpenTelemetry metrics of a job while entered.

    Every metric has the attributes ``stratagem.task`` and ``stratagem.process``. The job's name is the
    resource's ``service.name``, unless ``OTEL_SERVICE_NAME`` is set.

    Args:
        name: The name of the job.
        view: Returns the state of the job, and its history after a given time.
        reader: Reads the metrics; by default they are sent with OTLP over HTTP to
            ``OTEL_EXPORTER_OTLP_ENDPOINT``, every ``OTEL_METRIC_EXPORT_INTERVAL``.

    Raises:
        LaunchError: If OpenTelemetry is not installed.
    """

    def __init__(
        self,
        name: str,
        view: Callable[[float], Mapping[str, Any]],
        reader: MetricReader | None = None,
    ) -> None:
        try:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.resources import Resource

            reader = reader or _otlp_reader()
        except ImportError as error:
            raise LaunchError(
                "--opentelemetry needs the OpenTelemetry SDK and exporter, which are not installed "
                f"({error}). {install_hint('opentelemetry')}"
            ) from None
        self._view = view
        # Attributes from the environment take precedence.
        resource = Resource({"service.name": name}).merge(_resource_of_environment())
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)

    def __enter__(self) -> Self:
        meter = self._provider.get_meter(_SCOPE, __version__)
        for metric in _METRICS:
            make = (
                meter.create_observable_counter
                if metric.is_counter
                else meter.create_observable_gauge
            )
            make(metric.name, [self._observe(metric)], metric.unit, metric.description)
        return self

    def __exit__(self, *_: object) -> None:
        self._provider.shutdown()  # exports once more

    def _observe(self, metric: _Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for task in self._view(math.inf)["tasks"]:
                own = {"stratagem.task": task["task"], "stratagem.process": task["process"] or 0}
                for value, attributes in metric.values(task):
                    yield Observation(value, {**own, **attributes})

        return observe


def _otlp_reader() -> MetricReader:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return PeriodicExportingMetricReader(OTLPMetricExporter())


def _resource_of_environment() -> Any:
    from opentelemetry.sdk.resources import OTELResourceDetector

    return OTELResourceDetector().detect()
