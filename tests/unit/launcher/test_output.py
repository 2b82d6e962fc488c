"""Lines, prefixes, colours, excerpts."""

import io
import os
import shutil
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.cluster import Task
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.backends.backend import task_program
from stratagem._src.launcher.console import Console, uses_colour
from stratagem._src.launcher.failure_report import failure_excerpt, failure_report
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.lines import LineSplitter, Tail
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_exit import TaskExit
from stratagem._src.launcher.task_output import TaskOutput

W0, W1 = Task("worker", 0), Task("worker", 1)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@given(st.lists(st.binary(max_size=6)))
def test_lines_do_not_depend_on_how_the_output_is_cut(chunks):
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.flush()
    whole = LineSplitter()
    assert lines == whole.feed(b"".join(chunks)) + whole.flush()


def test_characters_cut_in_two_are_put_together():
    splitter = LineSplitter()
    euro = "€\n".encode()
    assert [splitter.feed(euro[:1]), splitter.feed(euro[1:])] == [[], ["€"]]


def test_progress_bars_take_little_memory():
    splitter = LineSplitter()
    for step in range(100_000):
        assert splitter.feed(f"\rstep {step}".encode()) == []
    assert splitter.progress == "step 99999"
    assert len(splitter._unfinished) < 20
    assert splitter.feed(b"\n") == ["step 99999"]
    assert splitter.progress == ""


def test_progress_stays_below_the_lines_of_others(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    console = Console(terminal, terminal)
    console.expect([W0, W1])
    console.progress(W0, "10%")
    console.line(W1, "hello", is_error=False)
    console.progress(W0, "20%" + "x" * 1000)
    console.line(W0, "done", is_error=True)
    console.line(W1, "bye", is_error=False)
    first, second, third, last = terminal.getvalue().split("\r\x1b[K")
    assert first == "[worker 0] 10%"
    assert second == "[worker 1] hello\n[worker 0] 10%"
    assert third == "[worker 0] 20%" + "x" * (len(third) - 14)
    assert len(third) < shutil.get_terminal_size().columns
    assert last == "[worker 0] done\n[worker 1] bye\n"


def test_progress_is_not_shown_where_it_cannot_be_taken_back():
    file = io.StringIO()
    console = Console(file, Terminal())
    console.expect([W0])
    console.progress(W0, "10%")
    assert file.getvalue() == ""


def test_endless_line_is_shown_in_parts():
    splitter = LineSplitter()
    assert sum(len(line) for line in splitter.feed(b"x" * 100_000)) == 100_000


@given(st.lists(st.binary(max_size=30)), st.integers(1, 20))
def test_tail_is_the_end(chunks, size):
    tail = Tail(size)
    for chunk in chunks:
        tail.feed(chunk)
    whole = b"".join(chunks)
    kept = whole[-size:]
    if len(whole) > size:
        kept = kept.partition(b"\n")[2] or kept
    assert tail.text() == kept.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_when_there_is_colour(stream, environment, coloured):
    assert uses_colour(stream, environment) is coloured


def test_tasks_have_colours_of_their_own_on_a_terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Terminal(), io.StringIO()
    console = Console(terminal, pipe)
    console.expect([W0, W1])
    for task in (W0, W1):
        console.line(task, "hello", is_error=False)
        console.line(task, "hello", is_error=True)
    first, second = terminal.getvalue().splitlines()
    assert first.endswith("[worker 0] \x1b[0mhello")
    assert first.split("[worker")[0] != second.split("[worker")[0]
    assert pipe.getvalue() == "[worker 0] hello\n[worker 1] hello\n"


def full_disk():
    # With a buffer, as of the launcher's own streams: it fails when it is flushed, and at the end.
    return open("/dev/full", "w")


def unread_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


def closed_stream():
    stream = io.StringIO()
    console_needs_it_open.append(stream)
    return stream


console_needs_it_open = []


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (full_disk, "No space left on device"),
        (unread_pipe, "Broken pipe"),
        (closed_stream, "I/O operation on closed file"),
    ],
)
def test_output_that_cannot_be_written_is_said_once_and_the_rest_is_written(make, reason, is_error):
    broken, other = make(), io.StringIO()
    console = Console(*((other, broken) if is_error else (broken, other)))
    console.expect([W0])
    while console_needs_it_open:
        console_needs_it_open.pop().close()
    for number in range(3):
        console.line(W0, f"lost {number}", is_error)
        console.line(W0, f"kept {number}", not is_error)
    broken.close()  # which flushes it
    assert other.getvalue().count(f"output is incomplete: {reason}. The job continues.") == 1
    assert other.getvalue().splitlines()[1:] == [f"[worker 0] kept {number}" for number in range(3)]
    if is_error:
        return
    console = Console(io.StringIO(), io.StringIO())
    console._streams = (broken, broken)
    console.message("to nobody")


@pytest.mark.parametrize("file", ["/dev/full", "/dev/null/nowhere"], ids=["full", "impossible"])
def test_a_log_file_that_cannot_be_written_does_not_end_the_task(file):
    errors, shown = [], io.StringIO()
    console = Console(shown, io.StringIO())
    console.expect([W0])
    output = TaskOutput(W0, console, Path(file), when_incomplete=errors.append)
    for number in range(3):
        output.feed(f"line {number}\n".encode(), is_error=False)
    assert output.close() == "line 0\nline 1\nline 2\n"
    assert shown.getvalue().count("line") == 3
    assert {type(error.strerror) for error in errors} == {str}


def test_a_log_file_is_written_whole_and_again_when_there_is_room(tmp_path, monkeypatch):
    failed = []
    output = TaskOutput(W0, None, tmp_path / "log", when_incomplete=failed.append)
    file, outcomes = output._file, iter([2, OSError(28, "No space"), None, None])

    def short_write(data):
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return file.write(data[:outcome])

    monkeypatch.setattr(output, "_file", types.SimpleNamespace(write=short_write, close=file.close))
    output.feed(b"abcdef", is_error=False)
    output.feed(b"ghi", is_error=False)
    output.close()
    assert (tmp_path / "log").read_bytes() == b"abghi"
    assert len(failed) == 1


TRACEBACK = "Traceback (most recent call last):\n  File x\nKeyError: 1"
CHAINED = (
    TRACEBACK + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    "Traceback (most recent call last):\n  File y\nValueError: 2"
)


def test_excerpt_is_the_last_traceback_with_its_causes():
    assert failure_excerpt(f"step\n{TRACEBACK}\nstep\n{CHAINED}\n") == CHAINED


def test_excerpt_of_an_exception_group_is_whole():
    group = (
        "  + Exception Group Traceback (most recent call last):\n  |   File x\n"
        "  | ExceptionGroup: two (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n    |   File y\n    | ValueError: 1\n"
        "    +------------------------------------"
    )
    assert failure_excerpt(f"before\n{group}\n") == group


def test_excerpt_without_a_traceback_is_the_last_lines():
    lines = [str(number) for number in range(100)]
    assert failure_excerpt("\n".join(lines)) == "\n".join(lines[-40:])


def test_report():
    first = TaskExit(W1, 3, output=f"step\n{TRACEBACK}\n")
    others = [TaskExit(W0, -15, by_launcher=True, output="x"), TaskExit(Task("ps", 0), -6)]
    assert failure_report(first, others).split("\n") == [
        "worker 1 failed with exit code 3. The end of its output:",
        "    Traceback (most recent call last):",
        "      File x",
        "    KeyError: 1",
        "worker 0 was stopped by the launcher",
        "ps 0 was killed by SIGABRT",
    ]


def test_the_line_of_another_failure_is_the_error_and_no_note_of_jax():
    other = TaskExit(
        W0,
        1,
        output=f"{TRACEBACK}\n{'-' * 20}\nFor simplicity, JAX has removed its "
        "internal frames from the traceback.\n",
    )
    report = failure_report(TaskExit(W1, 3, output=TRACEBACK), [other])
    assert report.endswith("worker 0 failed with exit code 1: KeyError: 1")


def test_the_end_of_the_output_is_that_of_the_program():
    output = TaskOutput(W0, None, None)
    output.feed(b"step 1\n", is_error=False)
    output.feed(
        b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number is : 1\n", is_error=True
    )
    assert output.close() == "step 1\n"


def test_report_of_a_silent_task():
    silent = TaskExit(W0, -9)
    assert failure_report(silent, []) == "worker 0 was killed by SIGKILL and printed nothing."


def test_private_message_closes_its_file_to_others(tmp_path):
    path = tmp_path / "errors"
    with path.open("w") as errors:
        path.chmod(0o644)
        console = Console(errors, errors)
        console.message("for all")
        assert path.stat().st_mode & 0o777 == 0o644
        console.private_message("for one")
        assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "stratagem: for all\nstratagem: for one\n"


HOSTILE = "\x1b[32mok\x1b[0m \x1b]0;owned\x07\x1b[2J\x9b2J"


def test_what_tasks_print_does_not_command_the_terminal():
    terminal, pipe = Terminal(), io.StringIO()
    tasks = [Task("worker", 0), Task("wor\x1b[2Jker", 1)]
    for stream in (terminal, pipe):
        console = Console(stream, stream)
        console.expect(tasks)
        for task in tasks:
            console.line(task, HOSTILE, is_error=False)
        console.foreign_line(HOSTILE, is_error=True)
        console.message(f"it failed:\n    {HOSTILE}")
        console.progress(tasks[0], HOSTILE)
    shown = terminal.getvalue()
    assert shown.count("\x1b[32mok\x1b[0m") == 4
    for order in ("\x1b]", "\x1b[2J", "\x07", "\x9b"):
        assert order not in shown
    assert pipe.getvalue().count(HOSTILE) == 4  # a file gets what was printed


@pytest.fixture
def _no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_no_umask")
def test_what_tasks_print_is_for_this_user_only(tmp_path):
    job = JobDescription(
        PythonProgram("os", is_module=True), log_dir=str(tmp_path / "new" / "logs")
    )
    folder = task_program(job).log_dir
    for append in (False, True):
        output = TaskOutput(W0, None, folder / "worker-0.log", append=append)
        output.feed(b"token\n", is_error=False)
        output.close()
    assert (folder / "worker-0.log").read_text() == "token\ntoken\n"
    for path in (folder, folder.parent, folder / "worker-0.log"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_log_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "logs"):
        job = JobDescription(PythonProgram("os", is_module=True), log_dir=str(path))
        with pytest.raises(LaunchError, match="--log-dir must be a writable directory"):
            task_program(job)
