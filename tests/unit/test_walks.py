"""The pages for contributors are true: the map has every package, and files and symbols exist."""

import ast
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from stratagem._src.execution import passes

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "src" / "stratagem" / "_src"
ARCHITECTURE, WALKS_PAGE = (
    (ROOT / "docs" / f"{n}.md").read_text() for n in ("architecture", "walks")
)
PAGES = {
    "CONTRIBUTING": (ROOT / "CONTRIBUTING.md").read_text(),
    "architecture": ARCHITECTURE,
    "walks": WALKS_PAGE,
}
WALKS = [
    "A compiled step",
    "An eager run",
    "A dataset element",
    "A scheduled function",
    "A lost worker",
]

_ITEM = re.compile(r"^\d+\. (.*)$", re.MULTILINE)
_ENTRY = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
_PATH = re.compile(r"`([\w/]+/[\w/]*(?:\.\w+)?)(?:: [\w.]+)?`")


def section(page: str, heading: str) -> str:
    """Returns what stands below a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", page, re.MULTILINE)
    assert found is not None, f"the page needs a section {heading!r}"
    rest = page[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def problem_with(file: str, name: str, packages: Path = PACKAGES) -> str | None:
    """Returns what is wrong with an entry of a walk, if anything is."""
    path = packages / file
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
def test_steps_of_a_walk_name_a_place(walk):
    text = section(WALKS_PAGE, walk)
    items = _ITEM.findall(text)
    assert len(items) >= 10, f"{walk!r} has only {len(items)} steps"
    for item in items:
        assert _ENTRY.match(item), f"a step begins with `package/file.py: name`, got {item!r}"


@pytest.mark.parametrize("page", PAGES)
def test_symbols_exist(page):
    problems = [problem_with(*entry) for entry in _ENTRY.findall(PAGES[page])]
    assert not list(filter(None, problems))
    assert problems or page == "CONTRIBUTING"


def test_what_is_gone_is_noticed(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "file.py").write_text("def f(): ...\nclass C:\n    def m(self): ...\n")
    assert problem_with("package/file.py", "f", tmp_path) is None
    assert problem_with("package/file.py", "C.m", tmp_path) is None
    assert problem_with("package/file.py", "m", tmp_path) == "package/file.py has no m"
    assert problem_with("package/file.py", "C.n", tmp_path) == "package/file.py has no C.n"
    assert problem_with("package/other.py", "f", tmp_path) == "there is no file package/other.py"


def test_map_has_the_packages_in_their_order():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    expected = [set(re.findall(r"[\w.]+", layer)) for layer in layers]
    packages = re.findall(r"^\| `([\w.]+)` \|", section(ARCHITECTURE, "Packages"), re.MULTILINE)
    folders = {name.partition(".")[0] for name in packages}
    assert folders == {path.parent.name for path in PACKAGES.glob("*/__init__.py")}
    for layer in expected:
        assert set(packages[: len(layer)]) == layer
        packages = packages[len(layer) :]


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page):
    paths = _PATH.findall(PAGES[page])
    assert paths
    places = (ROOT, PACKAGES, ROOT / "src" / "stratagem")
    if page == "architecture":  # its table names folders below the package of the row
        places = (*places, *(path for path in PACKAGES.iterdir() if path.is_dir()))
    gone = [path for path in paths if not any((place / path).exists() for place in places)]
    assert not gone


@pytest.mark.parametrize("page", PAGES)
def test_other_names_occur_in_the_code(page):
    # `name`, `Class.name` or `name(arguments)`: what the last part of it is called.
    names = set(re.findall(r"`(?:\w+\.)*([A-Za-z_]\w+)(?:\([^`]*\))?`", PAGES[page]))
    folders = (ROOT / "src", ROOT / "tests", ROOT / "pyproject.toml")
    files = [f for folder in folders for f in (folder, *folder.rglob("*.py")) if f.is_file()]
    code = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    code |= set(re.findall(r"\w+", (ROOT / "Makefile").read_text()))
    assert not names - code - {"pytest", "ruff", "mypy"}


def test_page_and_picture_have_the_passes_in_their_order():
    every = [f.__name__ for f in (*passes.LIFTS, *passes.REWRITES, passes.evaluate)]
    page = _ENTRY.findall(section(ARCHITECTURE, "From a traced function to XLA"))
    assert [name for file, name in page if file == "execution/passes.py"] == every
    picture = [entry[1:] for _, *phase in load_pictures().PIPELINE for entry in phase]
    assert [name for file, name in picture if file == "execution/passes.py"] == every


def load_pictures() -> ModuleType:
    """Returns the script that draws the pictures of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location("draw_pictures", ROOT / "docs/draw_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "draw_pictures", script)  # for its dataclass
        spec.loader.exec_module(script)
    return script


def test_how_to_work_is_short():
    assert len(PAGES["CONTRIBUTING"].encode()) <= 6_000


def test_pictures_are_those_that_the_script_draws(tmp_path, monkeypatch):
    script = load_pictures()
    steps = [entry for _, *phase in script.PIPELINE for entry in phase]
    assert not list(filter(None, (problem_with(file, name) for _, file, name in steps)))
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    script.draw_all()
    for picture in tmp_path.iterdir():
        assert (ROOT / "docs/images" / picture.name).read_text() == picture.read_text(), (
            f"{picture.name} is old: run docs/draw_pictures.py"
        )


def test_the_fast_tests_exist():
    found = re.search(r"^FAST := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    names = found[1].replace("\\", "").split()
    assert len(names) > 5
    assert [n for n in names if not (ROOT / "tests" / "unit" / n).is_dir()] == []
