"""Signal handlers that interrupt the start of a save, or a wait for one, between any two bytecodes."""

import contextlib
import itertools
import linecache
import sys
import threading
from pathlib import Path

import pytest

import stratagem as sg
from stratagem._src.checkpoint import async_save, checkpoint, saving
from stratagem._src.checkpoint.async_save import AsyncSave, wait_for_saves
from stratagem._src.checkpoint.format import directories
from stratagem._src.checkpoint.format.directories import NewDirectory
from stratagem._src.process import background

# Whose bytecodes are interrupted: a wait for a thread is a few of them in threading.
INTERRUPTED = (async_save.__file__, threading.__file__)


def interrupt_at(number, call, handler, files=INTERRUPTED):
    """Calls something, and a handler before its ``number``-th bytecode, as a signal would.

    Returns:
        Whether there were so many.
    """
    numbers = itertools.count()
    reached = False

    def trace(frame, event, _):
        nonlocal reached
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(numbers) == number:
            reached = True
            handler()
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return reached


def make(directory, write=lambda: None):
    return AsyncSave(Path(directory) / "saved", write, lambda: None, lambda: False)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(async_save, "_START_TIMEOUT_SECONDS", 0.002)
    monkeypatch.setattr(async_save, "_JOIN_TIMEOUT_SECONDS", 0.002)


def test_a_handler_that_saves_and_waits_at_any_moment(tmp_path):
    written = []
    for number in itertools.count():
        outer = make(tmp_path, lambda: written.append("outer"))
        inner = make(tmp_path, lambda: written.append("inner"))

        def handler(outer=outer, inner=inner):
            inner.start()
            outer.wait()  # as every save does, for all that are being written
            inner.wait()

        def save(outer=outer):
            outer.start()
            outer.wait()

        if not interrupt_at(number, save, handler):
            break
        assert sorted(written) == ["inner", "outer"]
        written.clear()
    assert number > 100
    assert not async_save._pending_saves


@pytest.fixture
def _forgotten_starts():
    """Takes threads off Python's list that an interrupt has kept from being started."""
    yield
    for thread in [t for t in threading.enumerate() if t.ident is None]:
        del threading._limbo[thread]


@pytest.mark.usefixtures("_forgotten_starts")
def test_a_save_that_is_interrupted_has_an_end(tmp_path):
    """Nothing waits for one that no thread writes; all that follow would, and the end of the program."""

    def handler():
        raise KeyboardInterrupt

    files = [async_save.__file__, background.__file__]
    number, is_reached = 0, True
    while is_reached:
        save = make(tmp_path)

        def start_and_wait(save=save):
            save.start()
            save.wait()

        with contextlib.suppress(KeyboardInterrupt):
            is_reached = interrupt_at(number, start_and_wait, handler, files)
        save.wait()
        wait_for_saves()
        number += 1
    assert number > 100
    assert not async_save._pending_saves
    # What the interrupts were recorded as: failures that the end of the program would tell of.
    async_save._unreported.clear()


def test_an_interrupt_at_any_line_of_a_write_leaves_the_path_free(tmp_path):
    files = [module.__file__ for module in (checkpoint, saving, directories)]
    v = sg.Variable([1.0, 2.0])
    saved = sg.train.Checkpoint(v=v)
    path = tmp_path / "saved"

    def interrupt_line(number):
        lines = itertools.count()

        def trace(frame, event, _):
            if frame.f_code.co_filename not in files:
                return None
            # Python has a line event before it leaves a `with`, but runs no handlers there: what the
            # interrupt keeps from being released would stay so for ever.
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
            if event == "line" and not text.startswith("with ") and next(lines) == number:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            saved.write(path)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    for number in itertools.count(step=2):
        if not interrupt_line(number):
            break
        saved.sync()  # it may have started
        NewDirectory(path, replace=True).discard()  # raises if the path is locked
    assert number > 50
    saved.write(path)
    saved.sync()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved"]
