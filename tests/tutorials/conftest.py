"""Scripts as users write them, run in as many processes as they are for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stratagem as tf

tf.keras  # noqa: B018  (sets an environment variable when it is loaded)


@pytest.fixture
def launch(tmp_path):
    """Runs a script of this folder with ``stratagem run``.

    Returns the results that the tasks have printed as ``RESULT`` and JSON, by task.
    """

    def launch(script, *arguments, flags=("--workers", 2)):
        hidden = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "TF_CONFIG")
        env = {key: value for key, value in os.environ.items() if key not in hidden}
        path = Path(__file__).with_name(script)
        job = subprocess.run(
            [sys.executable, "-m", "stratagem", "run", *map(str, (*flags, path, *arguments))],
            env={**env, "JAX_PLATFORMS": "cpu", "NO_COLOR": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert job.returncode == 0, job.stdout + job.stderr
        found = re.findall(r"^\[(\w+ \d+)\] *RESULT (.*)$", job.stdout, re.MULTILINE)
        return {task: json.loads(result) for task, result in found}

    return launch
