"""CONTRIBUTING.md tells the truth: its map has every room, and its walks name what exists."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ROOT / "src" / "stratagem" / "_src"
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
WALKS = [
    "A compiled step",
    "An eager run",
    "A dataset element",
    "A scheduled function",
    "A lost worker",
]

_ITEM = re.compile(r"^\d+\. (.*)$", re.MULTILINE)
_ENTRY = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
_PATH = re.compile(r"`([\w/]+/[\w/]+(?:\.\w+|/))`")


def section(page: str, heading: str) -> str:
    """Returns what stands below a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", page, re.MULTILINE)
    assert found is not None, f"CONTRIBUTING.md needs a section {heading!r}"
    rest = page[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def problem_with(file: str, name: str, rooms: Path = ROOMS) -> str | None:
    """Returns what is wrong with an entry of a walk, if anything is."""
    path = rooms / file
    if not path.is_file():
        return f"there is no file {file}"
    scope: ast.AST = ast.parse(path.read_text())
    for part in name.split("."):
        inner = [node for node in scope.body if getattr(node, "name", None) == part]
        if not inner:
            return f"{file} has no {name}"
        scope = inner[-1]
    return None


@pytest.mark.parametrize("walk", WALKS)
def test_walk_names_what_exists(walk):
    text = section(PAGE, walk)
    items = _ITEM.findall(text)
    assert len(items) >= 10, f"{walk!r} is no walk of {len(items)} steps"
    for item in items:
        assert _ENTRY.match(item), f"a step begins with `room/file.py: name`, got {item!r}"
    problems = [problem_with(*entry) for entry in _ENTRY.findall(text)]
    assert not list(filter(None, problems))


def test_what_is_gone_is_noticed(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "file.py").write_text("def f(): ...\nclass C:\n    def m(self): ...\n")
    assert problem_with("room/file.py", "f", tmp_path) is None
    assert problem_with("room/file.py", "C.m", tmp_path) is None
    assert problem_with("room/file.py", "m", tmp_path) == "room/file.py has no m"
    assert problem_with("room/file.py", "C.n", tmp_path) == "room/file.py has no C.n"
    assert problem_with("room/other.py", "f", tmp_path) == "there is no file room/other.py"


def test_map_has_the_rooms_in_their_order():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    expected = [set(re.findall(r"\w+", layer)) for layer in layers]
    rows = re.findall(r"^\| (`.*?) \|", section(PAGE, "The map of the house"), re.MULTILINE)
    rooms = [room for row in rows for room in re.findall(r"`(\w+)`", row)]
    assert sorted(rooms) == sorted(path.parent.name for path in ROOMS.glob("*/__init__.py"))
    for layer in expected:
        assert set(rooms[: len(layer)]) == layer
        rooms = rooms[len(layer) :]


def test_paths_exist():
    paths = [path for path in _PATH.findall(PAGE) if "<" not in path]
    assert paths
    places = (ROOT, ROOMS, ROOT / "src" / "stratagem")
    gone = [path for path in paths if not any((place / path).exists() for place in places)]
    assert not gone
