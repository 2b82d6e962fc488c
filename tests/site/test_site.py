"""The documentation as a site: complete, without warnings, and as a reader sees it in a browser.

``make docs`` builds it and ``make test-site`` runs these tests, which need the extra ``docs`` and Chromium.
"""

import importlib
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from web_server import served

import stratagem as sg
import stratagem.keras  # here, for Keras sets environment variables when it is imported

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
ROOT = Path(__file__).parents[2]
WIDTHS = {"desktop": 1280, "phone": 390}
# What people type into the search, and the page that must come first.
SEARCHES = {
    "FSDP": "sharded_state",
    "ZeRO": "sharded_state",
    "tensor parallelism": "sharded_state",
    "sharding rules": "sharding_rules",
    "PartitionSpec": "sharding_rules",
    "DDP": "concepts",
    "data parallel": "concepts",
    "multi-host": "workers",
    "world size": "workers",
    "heartbeat": "workers",
    "gradient compression": "workers",
    "mixed precision": "mixed_precision",
    "bf16": "mixed_precision",
    "loss scaling": "mixed_precision",
    "gradient accumulation": "gradient_recipes",
    "gradient clipping": "gradient_recipes",
    "learning rate schedule": "gradient_recipes",
    "bucketing": "running",
    "buffer donation": "running",
    "barrier": "running",
    "retracing": "running",
    "elastic": "fault_tolerance",
    "preemption": "fault_tolerance",
    "quorum": "fault_tolerance",
    "straggler": "monitoring",
    "throughput": "monitoring",
    "overhead": "monitoring",
    "limitations": "limits",
    "flax": "flax",
    "BatchNorm": "flax",
    "PyTorch": "from_pytorch",
    "torchrun": "mpirun",
    "GradScaler": "mixed_precision",
    "random numbers": "random_numbers",
    "dropout": "flax",
    "TFRecord": "tfrecord",
    "notebook": "notebooks",
}

sys.path.insert(0, str(ROOT / "docs"))
import reference_pages  # noqa: E402


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Returns the folder of the site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def public_modules():
    """Returns the names of all public modules, found by following the doors."""
    found, waiting = [], [sg]
    while waiting:
        module = waiting.pop()
        if module.__name__ not in found:
            found.append(module.__name__)
            children = [getattr(module, name) for name in module.__all__]
            waiting += [
                c
                for c in children
                if getattr(c, "__name__", "").startswith("stratagem.")
                and hasattr(c, "__all__")
                and "_src" not in c.__name__
            ]
    return found


def test_every_public_module_has_a_page():
    assert set(public_modules()) == set(reference_pages.MODULES)


@pytest.mark.timeout(400)
def test_every_public_symbol_appears(site):
    for name in reference_pages.MODULES:
        module = importlib.import_module(name)
        page = (site / "reference" / name / "index.html").read_text()
        missing = [s for s in reference_pages.symbols(module) if f'id="{name}.{s}"' not in page]
        assert not missing, f"{name} lacks {missing}"


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        for loaded in ('src="http', "url(http", '<link rel="stylesheet" href="http'):
            assert loaded not in text, f"{page} loads {loaded}"


@pytest.fixture(scope="session")
def address(site):
    """Returns where the site is served."""
    with served(site) as address:
        yield address


@pytest.mark.parametrize("screen", WIDTHS)
@pytest.mark.parametrize(
    "path", ["", "whole_program/", "concepts/", "architecture/", "reference/stratagem.distribute/"]
)
def test_a_page_fits_the_screen(browser, address, screen, path, tmp_path):
    page = browser.new_page(viewport={"width": WIDTHS[screen], "height": 900})
    failed = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(f"{address}/{path}")
    page.wait_for_load_state("networkidle")
    assert page.locator("h1").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[screen]
    pictures = page.evaluate("[...document.images].map(i => i.naturalWidth)")
    assert all(pictures), "a picture is missing"
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    picture = folder / f"{path.strip('/').replace('/', '-') or 'home'}-{screen}.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size > 10_000
    assert not failed
    page.close()


def search(browser, address, typed):
    """Types a term into the search; returns the addresses in the first result, sections included."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.locator("input.md-search__input").first.click()
    page.keyboard.insert_text(typed)
    links = page.locator(".md-search-result__item").first.locator("a")
    links.first.wait_for(timeout=20_000)
    found = links.evaluate_all("links => links.map(link => link.href)")
    page.wait_for_load_state("networkidle")
    page.close()
    return [urllib.parse.urlsplit(link) for link in found]


def test_search_finds_a_name(browser, address):
    found = search(browser, address, "MirroredStrategy")
    assert "stratagem.distribute.MirroredStrategy" in [link.fragment for link in found]


@pytest.mark.parametrize("typed", SEARCHES)
def test_search_finds_the_page_of_a_concept(browser, address, typed):
    page, *_ = search(browser, address, typed)
    assert page.path.strip("/") == SEARCHES[typed]
