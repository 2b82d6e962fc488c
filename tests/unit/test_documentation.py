"""The documentation is true: its code runs, prints what it says, and every public name has its own.

Run as a script with the path of a page, this file executes that page. Each page gets a process of
its own, because the JAX backend starts once and the pages ask for virtual devices themselves.
"""

import contextlib
import enum
import io
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest

import stratagem as sg

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages that a program writes, of what others print: there is nothing in them to run.
GENERATED = {"benchmarks"}
# Pages about the code itself, without any to run: test_walks.py compares them with it.
ABOUT_THE_CODE = {"architecture", "walks"}
# Pages whose blocks show what other pages, or tests of their own, show too.
BREADTH = {
    "concepts",
    "faq",
    "flax",
    "from_pytorch",
    "glossary",
    "gradient_recipes",
    "how_it_works",
    "islands",
    "kubernetes",
    "launching",
    "limits",
    "mixed_precision",
    "monitoring",
    "mpirun",
    "networking",
    "notebooks",
    "parameter_server_script",
    "profiling",
    "random_numbers",
    "ray",
    "saved_models",
    "security",
    "sharded_state",
    "sharding_rules",
    "slurm",
    "summaries",
    "tensorflow_names",
    "tfrecord",
    "tpu",
    "troubleshooting",
    "whole_program",
}
NAMESPACES = [
    sg,
    sg.bitwise,
    sg.compat,
    sg.compat.v1,
    sg.debugging,
    sg.distribute,
    sg.distribute.experimental,
    sg.dtypes,
    sg.image,
    sg.io,
    sg.io.gfile,
    sg.linalg,
    sg.lookup,
    sg.lookup.experimental,
    sg.math,
    sg.metrics,
    sg.nn,
    sg.profiler,
    sg.profiler.experimental,
    sg.random,
    sg.random.experimental,
    sg.saved_model,
    sg.sparse,
    sg.strings,
    sg.summary,
    sg.summary.experimental,
    sg.sysconfig,
    sg.test,
    sg.tpu,
    sg.tpu.experimental,
]
# Nothing to show: made by other things, or changes the whole process.
WITHOUT_EXAMPLE = {"DistributedValues", "StrategyExtended", "experimental_set_strategy"}

# Blocks in content tabs are indented.
_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_PRINT = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)


def run_page(page: Path, *, with_peers: bool = False) -> None:
    """Executes the Python blocks of a page, in order and in one namespace.

    A line ``print(...)  # text`` must print just that text.

    Args:
        page: The page.
        with_peers: Whether to execute blocks marked ``py`` too, which need libraries we do not depend on.
    """
    text = page.read_text()
    if with_peers:
        text = text.replace("```py\n", "```python\n")
    namespace = {"__name__": "__main__"}
    for block in _BLOCK.finditer(text):
        line, code = text.count("\n", 0, block.start(2)), textwrap.dedent(block[2])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
        expected, got = _PRINT.findall(code), printed.getvalue().splitlines()
        if got != expected:
            raise SystemExit(f"{page}, line {line}: says {expected}, prints {got}")


def run_python(*arguments: str | Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs Python on the CPU, with no number of devices set in advance."""
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=env | {"JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.stem in BREADTH), id=page.name)
        for page in PAGES
        if page.stem not in GENERATED | ABOUT_THE_CODE
    ],
)
def test_page_runs(page):
    assert _BLOCK.search(page.read_text()), "a page without a Python block proves nothing"
    result = run_python(__file__, page, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.peer("equinox")
def test_page_runs_with_equinox():
    result = run_python(__file__, ROOT / "docs" / "flax.md", "--with-peers", timeout=280)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.peer("torch", "tensorboard")
def test_page_runs_with_torch():
    page = ROOT / "docs" / "from_pytorch.md"
    result = run_python(__file__, page, "--with-peers", timeout=280)
    assert result.returncode == 0, result.stderr


def test_wrong_page_is_noticed(tmp_path):
    page = tmp_path / "wrong.md"
    page.write_text("Text.\n\n```python\nx = 1\n```\n\n```python\nprint(x + 1)  # 3\n```\n")
    result = run_python(__file__, page, timeout=60)
    assert result.returncode != 0
    assert "line 7: says ['3'], prints ['2']" in result.stderr


def test_links_lead_somewhere():
    pages = [
        *PAGES,
        *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")),
    ]
    for page in pages:
        for target, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
            if "://" in target:
                continue
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            if fragment:
                assert fragment in headings_of(linked), f"{page.name} links to {target}#{fragment}"


def headings_of(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def public_names():
    for namespace in NAMESPACES:
        for name in namespace.__all__:
            symbol = getattr(namespace, name)
            if symbol is not None and not isinstance(symbol, np.dtype):  # tf.newaxis is None
                yield pytest.param(name, symbol, id=f"{namespace.__name__}.{name}")


@pytest.mark.parametrize(("name", "symbol"), list(public_names()))
def test_public_name_is_documented(name, symbol):
    documentation = symbol.__doc__ or ""
    assert documentation.strip(), f"{name} needs a docstring"
    is_enum = isinstance(symbol, type) and issubclass(symbol, enum.Enum)
    if not isinstance(symbol, types.ModuleType) and not is_enum and name not in WITHOUT_EXAMPLE:
        assert ">>> " in documentation, f"the docstring of {name} needs an example"


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), with_peers="--with-peers" in sys.argv)
