import os
import subprocess
import sys

PROGRAM = """
import os, sys, threading

read = []
get = type(os.environ).__getitem__
def watch(self, key):
    read.append(key)
    return get(self, key)
type(os.environ).__getitem__ = watch

import stratagem.cluster, stratagem.partitioners

launchers = [name for name in read if name in ("TF_CONFIG", "SLURM_PROCID")]
print("jax" in sys.modules, threading.active_count(), launchers)
"""


def test_importing_starts_nothing_and_reads_no_launcher():
    environment = {**os.environ, "TF_CONFIG": "{", "SLURM_PROCID": "x"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)

    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout

    assert printed.split(maxsplit=2) == ["False", "1", "[]\n"]
