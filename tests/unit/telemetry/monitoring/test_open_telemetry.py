"""What is known of a job as metrics, read by OpenTelemetry's own SDK and sent by its own exporter."""

import http.server
import threading

import pytest

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.telemetry.monitoring import open_telemetry
from stratagem._src.telemetry.monitoring.job_history import JobHistory
from stratagem._src.telemetry.monitoring.open_telemetry import OpenTelemetryMetrics

export = pytest.importorskip("opentelemetry.sdk.metrics.export")

STEP = {
    "input": 0.1,
    "compute": 0.2,
    "communication": 0.0,
    "waiting": 0.0,
    "other": 0.0,
    "total": 0.3,
}
SAMPLE = {
    "time": 2.0,
    "event": "sample",
    "task": "worker 0",
    "process": 7,
    "steps": 12,
    "examples": 384,
    "steps_per_second": 3.0,
    "examples_per_second": 96.0,
    "step": STEP,
    "reported": {"loss": 0.5},
    "memory": 1000,
    "figures": {"coordinator": {"queued": 3}},
    "straggler": None,
}


@pytest.fixture
def view():
    history = JobHistory()
    history.add({"time": 1.0, "event": "attempt_started", "attempt": 0, "tasks": ["ps 0"]})
    history.add(SAMPLE)
    return lambda since: history.view(3.0, since)


def points_of(data):
    """Returns every value by the metric's name and its attributes."""
    [resource] = data.resource_metrics
    [scope] = resource.scope_metrics
    assert scope.scope.name == "stratagem"
    return {
        (
            metric.name,
            *(str(v) for k, v in point.attributes.items() if k != "stratagem.process"),
        ): point.value
        for metric in scope.metrics
        for point in metric.data.data_points
    }, resource.resource.attributes


def test_every_figure_is_a_metric(view):
    reader = export.InMemoryMetricReader()
    with OpenTelemetryMetrics("train", view, reader):
        points, resource = points_of(reader.get_metrics_data())
    assert resource["service.name"] == "train"
    assert points[("stratagem.task.steps", "worker 0")] == 12
    assert points[("stratagem.task.examples", "worker 0")] == 384
    assert points[("stratagem.task.memory", "worker 0")] == 1000
    assert points[("stratagem.step.duration", "worker 0", "compute")] == 0.2
    assert points[("stratagem.reported", "worker 0", "loss")] == 0.5
    assert points[("stratagem.figure", "worker 0", "coordinator", "queued")] == 3
    assert points[("stratagem.task.starts", "ps 0")] == 1
    assert ("stratagem.task.memory", "ps 0") not in points


def test_the_environment_names_the_service(view, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "other")
    reader = export.InMemoryMetricReader()
    with OpenTelemetryMetrics("train", view, reader):
        assert points_of(reader.get_metrics_data())[1]["service.name"] == "other"


def test_metrics_travel_by_otlp(view, monkeypatch):
    messages = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    received = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with OpenTelemetryMetrics("train", view):
            pass  # all is sent at the end
        server.shutdown()
        thread.join()
    request = messages.ExportMetricsServiceRequest.FromString(received[-1])
    names = {m.name for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert {"stratagem.task.steps", "stratagem.reported"} <= names


def test_without_the_extra_it_is_named(view, monkeypatch):
    def missing():
        raise ImportError("No module named 'opentelemetry.exporter'")

    monkeypatch.setattr(open_telemetry, "_otlp_reader", missing)
    with pytest.raises(LaunchError, match=r"stratagem\[opentelemetry\]"):
        OpenTelemetryMetrics("train", view)
