"""Lines, prefixes, colours, excerpts."""

import io
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem._src.cluster import Task
from stratagem._src.launcher.console import Console, uses_colour
from stratagem._src.launcher.failure_report import failure_excerpt, failure_report
from stratagem._src.launcher.lines import LineSplitter, Tail
from stratagem._src.launcher.task_ending import TaskEnding

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


def test_output_that_nobody_reads_is_noticed():
    closed = io.StringIO()
    closed.close()
    console = Console(io.StringIO(), io.StringIO())
    console._streams = (closed, closed)
    console.message("hello")
    assert console.is_broken


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
    first = TaskEnding(W1, 3, output=f"step\n{TRACEBACK}\n")
    others = [TaskEnding(W0, -15, by_launcher=True, output="x"), TaskEnding(Task("ps", 0), -6)]
    assert failure_report(first, others).split("\n") == [
        "worker 1 failed with exit code 3. The end of its output:",
        "    Traceback (most recent call last):",
        "      File x",
        "    KeyError: 1",
        "worker 0 was ended by the launcher",
        "ps 0 was killed by SIGABRT",
    ]


def test_report_of_a_silent_task():
    silent = TaskEnding(W0, -9)
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
