"""The command that installs an extra names the libraries of pyproject.toml."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from stratagem._src.core.extras import install_command, install_hint

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
LEAVES = {
    extra: libraries
    for extra, libraries in PROJECT["optional-dependencies"].items()
    if not any(library.startswith("stratagem[") for library in libraries)
}


def requires_of_this_tree(name):
    assert name == "stratagem"
    extras = PROJECT["optional-dependencies"].items()
    return PROJECT["dependencies"] + [f'{x}; extra == "{e}"' for e, found in extras for x in found]


@pytest.mark.parametrize("extra", LEAVES)
def test_every_library_of_an_extra_is_named(monkeypatch, extra):
    monkeypatch.setattr(importlib.metadata, "requires", requires_of_this_tree)
    command = install_command(extra)
    assert command == " ".join(["pip install", *(f"'{library}'" for library in LEAVES[extra])])
    assert install_hint(extra) == f"Run {command} (the extra stratagem[{extra}])."


def test_a_tree_that_is_not_installed_names_the_extra(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert install_command("keras") == "pip install 'stratagem[keras]'"


def test_the_readme_lists_every_extra():
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    for extra in PROJECT["optional-dependencies"]:
        assert f"| `{extra}` |" in readme, extra
