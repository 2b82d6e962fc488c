"""What the import linter and the type checker need in order to see every edge between rooms."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

import stratagem

ROOT = Path(stratagem.__file__).parent
# By string, for doors: they import the same for the type checker.
LOADS_BY_STRING = ROOT / "_src/core/lazy_names.py"
FILES = sorted(path for path in ROOT.rglob("*.py") if path != LOADS_BY_STRING)
DOORS = [path for path in FILES if "lazy_names(" in path.read_text()]
STRATEGIES = {"strategy", "container_strategy"}


def nodes(path):
    return ast.walk(ast.parse(path.read_text()))


def is_any(annotation):
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def imported_modules(path):
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def names_own_module(text):
    return text.startswith("stratagem.") and importlib.util.find_spec(text) is not None


def test_own_modules_are_not_imported_by_string():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value.startswith("stratagem")
    ]
    assert not found, "write an import statement, which import-linter and mypy can see"


@pytest.mark.parametrize("door", DOORS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_door_loads_by_string_it_also_imports_for_the_type_checker(door):
    constants = [node.value for node in nodes(door) if isinstance(node, ast.Constant)]
    by_string = {text for text in constants if isinstance(text, str) and names_own_module(text)}
    assert by_string <= set(imported_modules(door))


def test_strategies_have_a_type_wherever_they_are_passed():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.arg) and node.arg in STRATEGIES and is_any(node.annotation)
    ]
    assert not found


def test_strategies_have_a_type_wherever_they_are_asked_for():
    asked = {"strategy", "extended", "distribute_strategy", "get_strategy"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef) and node.name in asked and is_any(node.returns)
    ]
    assert not found
