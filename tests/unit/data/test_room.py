"""What holds for the whole room: its documentation runs, and importing it starts nothing."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import stratagem.data
import stratagem.io

MODULES = [
    module.name
    for package in (stratagem.data, stratagem.io)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("room", [stratagem.data, stratagem.data.experimental, stratagem.io])
def test_every_public_name_has_an_example(room):
    public = [getattr(room, name) for name in room.__all__]
    documented = [item for item in public if isinstance(item, type) or callable(item)]
    assert documented
    lacking = [item for item in documented if ">>>" not in item.__doc__ and not is_error(item)]
    assert not lacking


def is_error(item):
    return isinstance(item, type) and issubclass(item, Exception)


def test_importing_starts_nothing():
    code = (
        "import sys, threading, stratagem.data, stratagem.io;"
        "print([m for m in ('pyarrow', 'google.protobuf', 'torch') if m in sys.modules],"
        "threading.active_count())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[] 1"
