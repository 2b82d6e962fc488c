"""What the tests of the site share: a browser, and the threads by which they talk to it."""

import shutil

import pytest

from belongings import Belongings, command_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def kept_for_the_session():
    """Returns the browser's processes and the threads of its client."""

    def kept():
        now = Belongings.now()
        return Belongings(
            threads=frozenset(t for t in now.threads if t.name.startswith("asyncio")),
            processes=frozenset(p for p in now.processes if "chromium" in command_of(p)),
        )

    return kept


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install '.[docs]'")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
