"""What the tests of the site share: a browser, and the threads by which they talk to it."""

import pytest

from belongings import Belongings, command_of


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
