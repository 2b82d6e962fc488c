"""Imports of TensorFlow become imports of Stratagem and JAX, in the same places."""

from __future__ import annotations

import functools

import libcst as cst
import libcst.matchers as m

from stratagem._src.migrate.jax_names import JaxNames
from stratagem._src.migrate.new_names import new_module
from stratagem._src.migrate.program import Program, code, dotted_name, import_prefix

__all__ = ["ImportRewriter"]


class ImportRewriter:
    """Rewrites import statements, once it is known what the rewritten program needs.

    ``import tensorflow as tf`` becomes ``import stratagem as sg``, and brings ``jax`` and ``jnp`` if the
    rewritten program uses them. ``from tensorflow import keras`` keeps its names.
    """

    def __init__(self, program: Program, names: JaxNames) -> None:
        self._program = program
        self._names = names
        self.dropped: set[cst.CSTNode] = set()
        """The roots of names of TensorFlow that have become JAX's."""
        self._at_top: set[str] = set()
        # Arrays have numpy() only where Stratagem is imported.
        self._needs_stratagem = any(
            m.matches(node, m.Call(func=m.Attribute(attr=m.Name("numpy"))))
            for node in program.nodes
        )

    def drop(self, node: cst.CSTNode) -> None:
        """Records that a name of TensorFlow has become one of JAX."""
        while isinstance(node, cst.Attribute):
            node = node.value
        self.dropped.add(node)

    @functools.cache  # noqa: B019  (it lives as long as the program's migration)
    def renames(self, name: str) -> bool:
        """Returns whether an alias becomes ``sg``: not if it may mean something else, too."""
        same = [one for one in self._program.imported if one.name == name]
        return all(
            one.is_whole_package and not one.unclear and one.prefix in ("", "compat.v1")
            for one in same
        ) and not _is_assigned_otherwise(self._program, name)

    def statement(self, original: cst.Import, updated: cst.Import) -> cst.Import:
        """Returns ``import stratagem as sg`` for ``import tensorflow as tf``."""
        unique: dict[str, cst.ImportAlias] = {}
        for old, new in zip(original.names, updated.names, strict=True):
            alias = self._alias(old, new)
            unique.setdefault(code(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)), alias)
        kept = list(unique.values())
        if len(kept) < len(original.names):
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(names=kept)

    def _alias(self, old: cst.ImportAlias, new: cst.ImportAlias) -> cst.ImportAlias:
        prefix = import_prefix(old.evaluated_name)
        is_stratagem = old.evaluated_name.partition(".")[0] == "stratagem"
        if prefix is None or (is_stratagem and old.evaluated_alias != "tf"):
            return new
        bound = old.evaluated_alias or old.evaluated_name.partition(".")[0]
        if self.renames(bound):
            alias = self._names.alias("sg")
            return new.with_changes(name=alias.name, asname=alias.asname)
        whole = "" if old.evaluated_alias is None else new_module(prefix)
        module = cst.parse_expression(".".join(part for part in ("stratagem", whole) if part))
        return new.with_changes(name=module, asname=new.asname or cst.AsName(cst.Name(bound)))

    def from_statement(
        self, original: cst.ImportFrom, updated: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        """Returns ``from stratagem import keras`` for ``from tensorflow import keras``."""
        module = dotted_name(original.module) or ""
        prefix = None if original.relative else import_prefix(module)
        if prefix is None or not module.startswith("tensorflow"):
            return updated
        path = ".".join(part for part in ("stratagem", new_module(prefix)) if part)
        updated = updated.with_changes(module=cst.parse_expression(path))
        if isinstance(updated.names, cst.ImportStar):
            return updated
        kept = [alias for alias in updated.names if self._is_used(original, alias)]
        if not kept:
            return cst.RemoveFromParent()
        if len(kept) == len(updated.names):
            return updated
        kept[-1] = kept[-1].with_changes(comma=updated.names[-1].comma)
        return updated.with_changes(names=kept)

    def _is_used(self, statement: cst.CSTNode, alias: cst.ImportAlias) -> bool:
        """Returns whether something refers to an import that has not become JAX's."""
        name = alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
        mine = [
            one for one in self._program.imported if one.statement is statement and one.name == name
        ]
        roots = [root for one in mine for root in one.roots]
        is_unclear = any(one.unclear or one.annotations for one in mine)
        return is_unclear or not roots or any(root not in self.dropped for root in roots)

    def line(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        """Returns a line, after the imports of JAX that its own imports must bring."""
        needed = self._needed(original)
        parent = self._program.parent(original)
        if isinstance(parent, cst.Module):  # once at the top is enough
            needed = [short for short in needed if short not in self._at_top]
            self._at_top.update(needed)
        lines = [cst.SimpleStatementLine([cst.Import([self._names.alias(one)])]) for one in needed]
        if not self._can_go(original):
            lines.append(updated)
        if lines == [updated]:
            return updated
        if not lines:
            has_others = len(getattr(parent, "body", ())) > 1
            return cst.RemoveFromParent() if has_others and "#" not in code(original) else updated
        lines = [one.with_changes(leading_lines=[]) for one in lines]
        lines[0] = lines[0].with_changes(leading_lines=updated.leading_lines)
        lines[-1] = lines[-1].with_changes(trailing_whitespace=updated.trailing_whitespace)
        return cst.FlattenSentinel(lines)

    def suite(
        self, original: cst.SimpleStatementSuite, updated: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        """Returns ``if x: import stratagem as sg; import jax`` for a body on the same line."""
        needed = self._needed(original)
        if not needed:
            return updated
        imports = [cst.Import([self._names.alias(one)]) for one in needed]
        semicolon = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))
        body = [one.with_changes(semicolon=semicolon) for one in updated.body]
        return updated.with_changes(body=[*body, *imports])

    def _needed(self, original: cst.SimpleStatementLine | cst.SimpleStatementSuite) -> list[str]:
        found = {short for one in original.body for short in self._names.needed(one)}
        if any(isinstance(one, cst.Import) for one in original.body):
            found.discard("sg")  # which takes the place of TensorFlow itself
        return sorted(found)

    def _can_go(self, line: cst.SimpleStatementLine) -> bool:
        """Returns whether all that a line imports has become JAX's."""
        [first, *others] = line.body
        if others or not isinstance(first, cst.Import | cst.ImportFrom):
            return False
        if isinstance(first.names, cst.ImportStar) or (
            isinstance(first, cst.Import) and (self._needs_stratagem or len(first.names) > 1)
        ):
            return False
        return not any(self._is_used(first, alias) for alias in first.names)


def _is_assigned_otherwise(program: Program, name: str) -> bool:
    """Returns whether a scope that imports a name also assigns it."""
    statements = {one.statement for one in program.imported if one.name == name}
    scopes = {one.scope for one in program.imported if one.name == name}
    return any(
        getattr(assignment, "node", None) not in statements
        for scope in scopes
        for assignment in scope.assignments[name]
    )
