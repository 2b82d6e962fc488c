"""A dashboard that is looked at from another host: with the key in its link, and not without."""

import re
import sys

import pytest
from host_jobs import STEPS

pytestmark = pytest.mark.slow

FETCH = """
import sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
try:
    print(opener.open(sys.argv[1], timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_a_dashboard_from_another_host(hosts):
    one, two = hosts(2)
    flags = ["--workers", 2, "--dashboard-address", f"{one.address}:8123"]
    command = [sys.executable, "-m", "stratagem", "run", *flags, STEPS, 10000, 0.1]
    job = one.start(command)
    job.wait_for("step 3 sum 3.0", 120)
    link = re.search(rf"http://{one.address}:8123/\S+", job.output())
    assert link, job.output()

    def fetched(url):
        done = two.start([sys.executable, "-c", FETCH, url])
        assert done.wait(30) == 0, done.output()
        return int(done.output())

    assert fetched(link[0]) == 200
    assert fetched(f"http://{one.address}:8123/") in (401, 403)
