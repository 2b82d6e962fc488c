"""The dashboard of a real job, as somebody sees it in a real browser.

``make test-site`` runs these tests, which need the extra ``docs`` and Chromium.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WIDTHS = {"desktop": 1280, "phone": 390}

TRAIN = """
import json, os, time
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)
data = sg.data.Dataset.from_tensor_slices(np.ones(8, np.float32)).repeat().batch(4)

@sg.function
def step(x):
    strategy.run(lambda x: total.assign_add(x.sum()), args=(x,))
    return total.read_value()

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
for x in strategy.experimental_distribute_dataset(data):
    time.sleep(0.05 * index)  # worker 1 is the late one
    sum_of_all = step(x)
    sg.train.report(total=sum_of_all)
    print(f"The sum is <b>{float(sum_of_all):.0f}</b>", flush=True)
"""


@pytest.fixture
def job(browser, tmp_path):
    """A job of two workers that trains until it is ended; the browser first, which may be missing."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [
        sys.executable,
        "-m",
        "stratagem",
        "run",
        "--workers",
        "2",
        "--dashboard",
        str(script),
    ]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        start_new_session=True,
    )
    said = process.stderr.readline()
    process.link = re.search(r"dashboard: (http://\S+)", said)[1]
    yield process
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def check_charts(page):
    """Legend, axes, steps instead of time, logarithmic axis and smoothing of the chart of ``total``."""
    assert page.locator("#workers span").all_inner_texts() == ["worker 0", "worker 1"]
    chart = page.locator('figure[data-chart="total"]')
    assert chart.locator(".ends span").all_inner_texts()[1] == "now"
    labels = chart.locator(".scale span").all_inner_texts()
    assert 2 <= len(labels) <= 6
    assert labels == sorted(labels, key=float)
    colours = [
        page.locator(f'figure[data-chart="steps/s"] polyline >> nth={i}').get_attribute("stroke")
        for i in range(2)
    ]
    assert len(set(colours)) == 2

    page.locator("#over-steps").check()
    first, last = chart.locator(".ends span").all_inner_texts()
    assert 0 < int(last.removeprefix("step ")) - int(first.removeprefix("step ")) < 10**6
    page.locator("#logarithmic").check()
    assert chart.locator("polyline").first.get_attribute("points")
    page.locator("#smoothing").fill("0.9")
    page.locator("#logarithmic").uncheck()
    assert page.evaluate("settings.smoothing") == 0.9
    page.locator("#smoothing").fill("0")
    assert page.evaluate("smoothed([0, 1, 'nan', 1], 0.5).map(exact)") == [
        *("0", "0.6667", "nan", "0.8571")
    ]
    assert page.evaluate("ticks(0, 0.93).map(exact)") == [*("0", "0.2", "0.4", "0.6", "0.8")]
    assert page.evaluate("axisOf([0.002, 30], true).labels.map(exact)") == [
        *("0.01", "0.1", "1", "10")
    ]
    page.locator("#over-steps").uncheck()


def check_logs(page):
    """The output of both workers, a search in it, and the output of one."""
    page.locator("#logs summary").click()
    lines = page.locator("#log-lines div")
    page.wait_for_function(
        "() => ['worker 0', 'worker 1'].every("
        "(task) => document.getElementById('log-lines').textContent.includes(task))",
        timeout=60_000,
    )
    sums = lines.filter(has_text="The sum is <b>")  # as text, not as a part of the page
    assert sums.count() > 0
    seen = lines.count()
    page.wait_for_function(
        "seen => document.querySelectorAll('#log-lines div').length > seen",
        arg=seen,
        timeout=60_000,
    )
    page.locator("#log-text").fill("SUM IS")
    page.locator("#log-lines mark").first.wait_for(timeout=60_000)
    assert page.locator("#log-lines mark").first.inner_text() == "sum is"
    assert sums.count() == lines.count()
    page.locator("#log-task").select_option("worker 1")
    page.wait_for_function(
        "() => document.querySelectorAll('#log-lines div').length > 0 && "
        "[...document.querySelectorAll('#log-lines b')].every((name) => name.textContent === 'worker 1')",
        timeout=60_000,
    )
    page.locator("#log-text").fill("no such text")
    page.locator("#log-count", has_text="no such line").wait_for(timeout=60_000)
    assert lines.count() == 0
    page.locator("#log-text").fill("sum")
    page.locator("#log-lines mark").first.wait_for(timeout=60_000)


def number_of(text):
    return float(text.replace(",", "") or "nan")


@pytest.mark.timeout(300)
def test_a_running_job_is_shown_live(browser, job, tmp_path):
    page = browser.new_page(viewport={"width": WIDTHS["desktop"], "height": 900})
    failed = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("console", lambda message: failed.append(message.text))
    page.goto(job.link)
    for task in ("worker 0", "worker 1"):
        row = page.locator(f'tr[data-task="{task}"]')
        row.locator("td.running").wait_for(timeout=120_000)
    page.locator("#straggler b").wait_for(timeout=120_000)
    assert page.locator("#straggler b").inner_text() == "worker 1"
    page.locator('figure[data-chart="total"] polyline').first.wait_for(
        state="attached", timeout=60_000
    )

    steps = page.locator('tr[data-task="worker 0"] td.number').first
    before = number_of(steps.inner_text())
    page.wait_for_function(
        "before => Number(document.querySelector('tr[data-task=\"worker 0\"] td.number')"
        ".textContent.replaceAll(',', '')) > before",
        arg=before,
        timeout=60_000,
    )
    waiting = page.evaluate(
        "document.querySelector('tr[data-task=\"worker 0\"] .bar .waiting').getBoundingClientRect().width"
    )
    assert waiting > 0
    check_charts(page)
    check_logs(page)
    assert re.fullmatch(r"\d+ %", page.locator('tr[data-task="worker 0"] td').nth(-3).inner_text())
    assert page.locator('figure[data-chart="CPU (cores)"] polyline').count() == 2
    assert page.locator("#notes li").count() > 0  # what the library has warned of
    for screen, width in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
        page.screenshot(path=folder / f"dashboard-{screen}.png")
    assert not failed

    job.send_signal(signal.SIGTERM)
    page.locator("#lost").wait_for(state="visible", timeout=60_000)
    page.close()
