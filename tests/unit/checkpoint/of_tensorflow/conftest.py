"""Checkpoints that TensorFlow has written: small ones that are stored, and larger new ones."""

import subprocess
import sys
from pathlib import Path

import pytest
from written_files import WrittenFiles

import stratagem as sg

sg.keras  # noqa: B018 (Keras runs on JAX, also where one file of this folder is collected alone)

HERE = Path(__file__).parent
LARGER = 33


@pytest.fixture(
    scope="session",
    params=["stored", pytest.param("larger", marks=pytest.mark.peer("tensorflow", "tf_keras"))],
)
def files(request, tmp_path_factory):
    if request.param == "stored":
        return WrittenFiles(HERE / "files", size=2)
    directory = tmp_path_factory.mktemp("tensorflow")
    command = [sys.executable, HERE / "write_checkpoints.py", directory, "--size", str(LARGER)]
    subprocess.run(command, check=True, capture_output=True, timeout=110)
    return WrittenFiles(directory, size=LARGER)
