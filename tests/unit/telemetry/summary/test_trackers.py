"""Summaries in CSV files, JSON lines, several writers at once, Weights & Biases and MLflow."""

import csv
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg


def rows_of(path):
    with open(path, newline="") as file:
        return [(int(r["step"]), r["name"], r["value"]) for r in csv.DictReader(file)]


def objects_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_some(writer):
    """Writes each kind of summary once, and scalars of a compiled step, the later step first."""

    @sg.function
    def step(x, number):
        sg.summary.scalar("loss/train", x, step=number)

    with writer.as_default(step=2):
        for number in (7, 3):
            step(jnp.float32(number / 2), jnp.int32(number))
        sg.summary.text("notes", 'several\nlines, "quoted"')
        sg.summary.histogram("weights", np.array([0.0, 0.2, 1.0, np.nan]), buckets=2)
        sg.summary.image("noise", np.zeros((2, 4, 5, 1)), max_outputs=2)


def test_csv(tmp_path, caplog):
    path = tmp_path / "below" / "metrics.csv"
    writer = sg.summary.create_csv_writer(path)
    write_some(writer)
    write_some(writer)
    writer.close()
    once = [
        (7, "loss/train", "3.5"),
        (3, "loss/train", "1.5"),
        (2, "notes", 'several\nlines, "quoted"'),
    ]
    assert rows_of(path) == once * 2
    assert [record.getMessage().partition(" is")[0] for record in caplog.records] == [
        "Histogram",
        "Images",
    ]


def test_json_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = sg.summary.create_jsonl_writer(path)
    before = time.time()
    write_some(writer)
    objects = objects_in(path)
    assert all(before <= one.pop("time") <= time.time() for one in objects)
    assert objects == [
        {"step": 7, "name": "loss/train", "value": 3.5},
        {"step": 3, "name": "loss/train", "value": 1.5},
        {"step": 2, "name": "notes", "value": 'several\nlines, "quoted"'},
        {"step": 2, "name": "weights", "counts": [2, 1], "edges": [0.0, 0.5, 1.0]},
    ]
    with writer.as_default():
        sg.summary.scalar("loss", math.nan, step=8)
    assert math.isnan(objects_in(path)[-1]["value"])
    writer.close()


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_resumed_run_continues_its_file(tmp_path, kind):
    path = tmp_path / "metrics"
    for step in range(3):
        writer = getattr(sg.summary, f"create_{kind}_writer")(path)
        with writer.as_default():
            sg.summary.scalar("loss", 0.5, step=step)
        writer.close()
    assert len(path.read_text().splitlines()) == (4 if kind == "csv" else 3)


def test_lines_of_threads_are_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = sg.summary.create_jsonl_writer(path)

    def write(number):
        with writer.as_default():
            for step in range(200):
                sg.summary.scalar(f"thread {number}", step, step=step)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    for number in range(4):
        steps = [one["step"] for one in objects_in(path) if one["name"] == f"thread {number}"]
        assert steps == list(range(200))


def test_a_signal_handler_may_write_while_a_summary_is_written(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    writer = sg.summary.create_csv_writer(path)
    written, write = [], os.write

    def interrupted_write(file, data):
        if not written:
            written.append(data)
            signal.raise_signal(signal.SIGUSR1)
        return write(file, data)

    with writer.as_default():
        before = signal.signal(
            signal.SIGUSR1, lambda *args: sg.summary.scalar("handler", 1.0, step=1)
        )
        try:
            sg.summary.scalar("first", 1.0, step=0)
            monkeypatch.setattr(os, "write", interrupted_write)
            sg.summary.scalar("interrupted", 1.0, step=1)
        finally:
            signal.signal(signal.SIGUSR1, before)
    writer.close()
    assert sorted(name for _, name, _ in rows_of(path)) == ["first", "handler", "interrupted"]


def test_several_writers_are_one(tmp_path):
    paths = tmp_path / "a.csv", tmp_path / "b.csv"
    writers = [sg.summary.create_csv_writer(path) for path in paths]
    both = sg.summary.combine_writers(*writers, sg.summary.create_noop_writer())
    with both.as_default(), sg.summary.record_if(lambda: True):
        assert sg.summary.scalar("loss", 0.5, step=1)
    both.close()
    assert rows_of(paths[0]) == rows_of(paths[1]) == [(1, "loss", "0.5")]
    with writers[0].as_default(), pytest.raises(RuntimeError, match="one that is closed"):
        sg.summary.scalar("loss", 0.5, step=2)


@pytest.mark.parametrize("wrong", [(), ("metrics.csv",)])
def test_what_is_no_writer_cannot_be_combined(wrong):
    with pytest.raises(ValueError, match="combine_writers needs one or more writers"):
        sg.summary.combine_writers(*wrong)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_an_error_names_the_missing_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    writer = getattr(sg.summary, f"create_{name}_writer")()
    with writer.as_default(), pytest.raises(ImportError, match=rf"stratagem\[{name}\]"):
        sg.summary.scalar("loss", 0.5, step=1)


def test_a_run_and_settings_of_another_are_refused():
    with pytest.raises(ValueError, match=r"got a run and \['project'\]"):
        sg.summary.create_wandb_writer(object(), project="digits")


def wandb_records(path):
    """Returns the records of an offline run: LevelDB's log format, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, position, parts = path.read_bytes(), 7, []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(b"".join(parts))
            parts = []


WANDB = """
import sys
import wandb
import stratagem as sg
sys.path.insert(0, {tests!r})
from test_trackers import write_some
writer = sg.summary.create_wandb_writer(project="digits", mode="offline", dir={folder!r})
write_some(writer)
{end}
"""


# In a process of its own, because wandb starts a service that lives as long as the program.
@pytest.mark.peer("wandb")
@pytest.mark.parametrize(("end", "exit_code"), [("writer.close()", 0), ("", 0), ("1 / 0", 1)])
def test_wandb_offline(tmp_path, end, exit_code):
    tests = os.path.dirname(__file__)
    program = WANDB.format(tests=tests, folder=str(tmp_path), end=end)
    done = subprocess.run([sys.executable, "-c", program], timeout=100, capture_output=True)
    assert done.returncode == exit_code, done.stderr.decode()
    [path] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    logged, ended = [], []
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {
                i.key or ".".join(i.nested_key): json.loads(i.value_json)
                for i in record.history.item
            }
            logged.append({k: v for k, v in items.items() if not k.startswith("_")})
        elif record.WhichOneof("record_type") == "exit":
            ended.append(record.exit.exit_code)
    assert logged[:3] == [
        {"loss/train": 3.5, "global_step": 7},
        {"loss/train": 1.5, "global_step": 3},
        {"notes": 'several\nlines, "quoted"', "global_step": 2},
    ]
    assert logged[3]["weights.values"] == [2, 1]
    assert logged[4]["noise.count"] == 2
    assert ended == [exit_code]


@pytest.fixture(params=["sqlite", "files", "server"])
def tracking_uri(request, tmp_path, monkeypatch):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/mlflow.db"
        return
    if request.param == "files":
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        yield f"file://{tmp_path}/mlruns"
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    artifacts = ["--artifacts-destination", str(tmp_path / "artifacts")]
    command = [sys.executable, "-m", "mlflow", "server", *where, *store, *artifacts]
    server = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def wait_for(url, server, seconds=100):
    end = time.monotonic() + seconds
    while True:
        assert server.poll() is None
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.2)


MLFLOW = """
import sys
import stratagem as sg
sys.path.insert(0, {tests!r})
from test_trackers import write_some
writer = sg.summary.create_mlflow_writer({uri!r}, experiment="digits")
write_some(writer)
"""


# In a process of its own, because MLflow leaves threads behind; the run ends with the program.
@pytest.mark.peer("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_mlflow(tracking_uri, tmp_path):
    program = MLFLOW.format(tests=os.path.dirname(__file__), uri=tracking_uri)
    for _ in range(2):  # the experiment exists the second time
        done = subprocess.run(
            [sys.executable, "-c", program], timeout=100, capture_output=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr.decode()
    look = f"""
import json, mlflow
client = mlflow.MlflowClient({tracking_uri!r})
[experiment] = [e for e in client.search_experiments() if e.name == "digits"]
for run in client.search_runs([experiment.experiment_id]):
    found = client.get_metric_history(run.info.run_id, "loss/train")
    files = []
    def walk(path):
        for file in client.list_artifacts(run.info.run_id, path):
            walk(file.path) if file.is_dir else files.append(file.path)
    walk(None)
    print(json.dumps([run.info.status, [(m.step, m.value) for m in found], files]))
"""
    done = subprocess.run(
        [sys.executable, "-c", look], timeout=100, capture_output=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode()
    runs = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert len(runs) == 2
    for status, metrics, files in runs:
        assert status == "FINISHED"
        assert sorted(metrics) == [[3, 1.5], [7, 3.5]]
        assert {"histograms/weights/2.json", "texts/notes/2.txt"} <= set(files)
        assert len([path for path in files if path.startswith("images/")]) >= 2
