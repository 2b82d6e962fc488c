"""A library that the program imports: what runs after it, and the garbage collector meanwhile."""

import gc
import importlib
import sys

import pytest

from stratagem._src.process.import_hooks import when_imported


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Returns a function that imports a new library with this code."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    name = "a_library_of_a_test"

    def load(code, call):
        (tmp_path / f"{name}.py").write_text(code)
        importlib.invalidate_caches()
        when_imported(name, call)
        return importlib.import_module(name)

    yield load
    sys.modules.pop(name, None)


def test_the_garbage_collector_pauses_during_an_import(library):
    during = []
    module = library("import gc\ncollects = gc.isenabled()", lambda: during.append(gc.isenabled()))
    assert (module.collects, during, gc.isenabled()) == (False, [False], True)


def test_the_garbage_collector_runs_after_a_failed_import(library):
    with pytest.raises(ZeroDivisionError):
        library("1 / 0", lambda: None)
    assert gc.isenabled()


def test_a_garbage_collector_that_is_off_stays_off(library):
    gc.disable()
    try:
        library("", lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_objects_that_the_program_has_frozen_stay_frozen(library):
    gc.freeze()
    try:
        library("", lambda: None)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
