"""``Program``: a parsed file, and which of its names are TensorFlow's.

Names are resolved by LibCST's scope analysis, so aliases, imports inside functions and names that a local
variable shadows mean here what they mean to Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst
from libcst.metadata import (
    Access,
    ImportAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    Scope,
    ScopeProvider,
)

__all__ = ["ImportedName", "Program", "code", "dotted_name", "import_prefix"]

# Parts of TensorFlow that are not its public API, or not in the package: nothing here takes their place.
_PRIVATE = ("python", "core", "contrib", "lite", "compiler", "tools")


@dataclass(eq=False)
class ImportedName:
    """A name that an import binds to TensorFlow or to a part of it."""

    name: str
    prefix: str
    """What it stands for, below ``tf.``: ``""`` for TensorFlow itself, ``"keras.layers"``, …"""
    statement: cst.CSTNode
    scope: Scope
    is_whole_package: bool
    """Whether the import binds a module by ``import``, so that its alias may be renamed."""
    roots: list[cst.Name] = field(default_factory=list)
    annotations: list[cst.SimpleString] = field(default_factory=list)
    unclear: bool = False
    """Whether some reference may also mean something else, as after ``tf = None``."""


def code(node: cst.CSTNode) -> str:
    """Returns the text of a node."""
    return cst.Module([]).code_for_node(node)


def dotted_name(node: cst.CSTNode | None) -> str | None:
    """Returns the text of ``a.b.c``, or ``None`` for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        inner = dotted_name(node.value)
        return None if inner is None else f"{inner}.{node.attr.value}"
    return None


def import_prefix(module: str) -> str | None:
    """Returns what a module is below ``tf.``, or ``None`` if it is not TensorFlow's public API.

    >>> import_prefix("tensorflow.keras.layers"), import_prefix("tensorflow.compat.v2")
    ('keras.layers', '')
    >>> import_prefix("tensorflow_datasets") is None
    True
    """
    package, _, rest = module.partition(".")
    if package not in ("tensorflow", "stratagem") or rest.split(".")[0] in _PRIVATE:
        return None
    if rest == "compat.v2" or rest.startswith("compat.v2."):
        rest = rest[len("compat.v2.") :]
    return rest


class Program:
    """A file as a tree, with parents, positions, scopes and the names of TensorFlow.

    Args:
        source: The file's text, or its bytes, whose encoding is then respected.

    Raises:
        libcst.ParserSyntaxError: If it is not Python.
    """

    def __init__(self, source: str | bytes) -> None:
        self._wrapper = MetadataWrapper(cst.parse_module(source))
        self.module = self._wrapper.module
        self._parents = self._wrapper.resolve(ParentNodeProvider)
        self._positions = self._wrapper.resolve(PositionProvider)
        self._scopes = self._wrapper.resolve(ScopeProvider)
        self.nodes = list(self.walk(self.module))
        """All nodes, in the order of the text."""
        self.imported = list(self._find_imports())
        self._imported_by_root = {root: one for one in self.imported for root in one.roots}

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Returns the node around a node."""
        return self._parents.get(node)

    def line(self, node: cst.CSTNode) -> int:
        """Returns the line where a node begins."""
        return self._positions[node].start.line

    def scope(self, node: cst.CSTNode) -> Scope | None:
        """Returns the scope of a node."""
        return self._scopes.get(node)

    def scopes(self) -> set[Scope]:
        """Returns all scopes."""
        return {scope for scope in self._scopes.values() if scope is not None}

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields the nodes around a node, from the inside."""
        while (node_around := self._parents.get(node)) is not None:
            yield node_around
            node = node_around

    def walk(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields a node and all nodes in it, in the order of the text."""
        yield node
        for child in node.children:
            yield from self.walk(child)

    def imported_name(self, node: cst.CSTNode) -> ImportedName | None:
        """Returns the import that ``a`` of ``a.b.c`` refers to, if it is one of TensorFlow."""
        while isinstance(node, cst.Attribute):
            node = node.value
        return self._imported_by_root.get(node) if isinstance(node, cst.Name) else None

    def tensorflow_name(self, node: cst.CSTNode | None) -> str | None:
        """Returns what ``tf.a.b`` stands for below ``tf.``: ``"a.b"``, whatever the alias is."""
        if node is None or (imported := self.imported_name(node)) is None:
            return None
        below = (dotted_name(node) or "").partition(".")[2]
        full = ".".join(part for part in (imported.prefix, below) if part)
        return full.removeprefix("compat.v2.")

    def called(self, node: cst.CSTNode | None) -> str | None:
        """Returns the name below ``tf.`` of the function that a node calls."""
        return self.tensorflow_name(node.func) if isinstance(node, cst.Call) else None

    def _find_imports(self) -> Iterator[ImportedName]:
        for scope in self.scopes():
            for assignment in scope.assignments:
                if isinstance(assignment, ImportAssignment):
                    found = _imported(assignment, scope)
                    if found is not None:
                        _resolve(found, assignment)
                        yield found


def _imported(assignment: ImportAssignment, scope: Scope) -> ImportedName | None:
    statement = assignment.node
    if isinstance(statement, cst.ImportFrom):
        if statement.relative or isinstance(statement.names, cst.ImportStar):
            return None
        module = dotted_name(statement.module) or ""
        alias = next(
            a for a in statement.names if (a.evaluated_alias or a.name.value) == assignment.name
        )
        full = f"{module}.{alias.evaluated_name}"
        prefix = import_prefix(full)
        if prefix is None or import_prefix(module) is None or module.startswith("stratagem"):
            return None
        return ImportedName(assignment.name, prefix, statement, scope, is_whole_package=False)
    assert isinstance(statement, cst.Import)
    alias = next(a for a in statement.names if assignment.name in _bound_names(a))
    prefix = import_prefix(alias.evaluated_name)
    if prefix is None:
        return None
    if alias.evaluated_name.startswith("stratagem") and alias.evaluated_alias != "tf":
        return None  # import stratagem as tf is a program for TensorFlow; as sg it is not
    if alias.evaluated_alias is None:  # import tensorflow.keras binds tensorflow
        name = assignment.name.split(".")[0]
        return ImportedName(name, "", statement, scope, is_whole_package=True)
    return ImportedName(assignment.name, prefix, statement, scope, is_whole_package=True)


def _bound_names(alias: cst.ImportAlias) -> set[str]:
    if alias.evaluated_alias is not None:
        return {alias.evaluated_alias}
    parts = alias.evaluated_name.split(".")
    return {".".join(parts[: n + 1]) for n in range(len(parts))}


def _resolve(found: ImportedName, assignment: ImportAssignment) -> None:
    for access in assignment.references:
        if isinstance(access.node, cst.SimpleString):
            found.annotations.append(access.node)
        elif _is_clear(access, found):
            found.roots.append(_root(access.node))
        else:
            found.unclear = True


def _is_clear(access: Access, found: ImportedName) -> bool:
    """Returns whether every assignment that a reference may mean is an import of the same thing."""
    for referent in access.referents:
        if not isinstance(referent, ImportAssignment):
            return False
        other = _imported(referent, referent.scope)
        if other is None or other.prefix != found.prefix:
            return False
    return True


def _root(node: cst.CSTNode) -> cst.Name:
    while isinstance(node, cst.Attribute):
        node = node.value
    assert isinstance(node, cst.Name)
    return node
