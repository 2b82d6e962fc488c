"""How a program calls JAX and Stratagem: its own aliases, or new ones that nothing else uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from stratagem._src.migrate.program import ImportedName, Program, dotted_name

__all__ = ["JaxNames"]

_MODULES = {"jax": "jax", "jnp": "jax.numpy", "sg": "stratagem"}


@dataclass
class Proposal:
    """A rewrite that may still be given up."""

    accepted: bool = False


class JaxNames:
    """Chooses the names of modules, and remembers which import must bring them.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        used = {node.value for node in program.nodes if isinstance(node, cst.Name)}
        self._known = dict(_module_imports(program))
        self.names = {
            short: self._known.get(module) or _unused(short, used)
            for short, module in _MODULES.items()
        }
        self._needed: dict[cst.CSTNode, set[str]] = {}
        self._program = program

    def expression(self, target: str, imported: ImportedName | None) -> cst.BaseExpression:
        """Returns ``jnp.sum`` for ``"jnp.sum"``, under the names of this program.

        Args:
            target: A name that begins with ``jnp``, ``jax`` or ``sg``; another is taken as it is.
            imported: The import of TensorFlow whose place it takes, which must bring the module.
        """
        short, _, rest = target.partition(".")
        if short not in _MODULES:
            return cst.parse_expression(target)
        if imported is not None and _MODULES[short] not in self._known:
            self._needed.setdefault(imported.statement, set()).add(short)
        return cst.parse_expression(".".join(part for part in (self.names[short], rest) if part))

    @contextlib.contextmanager
    def proposed(self) -> Iterator[Proposal]:
        """Forgets in the end which modules a rewrite needs, unless it was accepted."""
        before = {statement: set(shorts) for statement, shorts in self._needed.items()}
        proposal = Proposal()
        yield proposal
        if not proposal.accepted:
            self._needed = before

    def is_of_jax(self, function: cst.BaseExpression) -> bool:
        """Returns whether a function's name is one of JAX."""
        first = (dotted_name(function) or "").partition(".")[0]
        return first in (self.names["jax"], self.names["jnp"])

    def needed(self, statement: cst.CSTNode) -> list[str]:
        """Returns the modules that references of an import now use, such as ``["jnp"]``."""
        return sorted(self._needed.get(statement, ()))

    def alias(self, short: str) -> cst.ImportAlias:
        """Returns what an import of a module says: ``jax.numpy as jnp``."""
        module, name = _MODULES[short], self.names[short]
        parsed = cst.parse_expression(module)
        assert isinstance(parsed, cst.Name | cst.Attribute)
        asname = None if module == name else cst.AsName(cst.Name(name))
        return cst.ImportAlias(parsed, asname)


def _module_imports(program: Program) -> list[tuple[str, str]]:
    """Returns modules that the file imports at its top already, and under which name."""
    found = []
    for line in program.module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.Import):
                for alias in statement.names:
                    module, name = alias.evaluated_name, alias.evaluated_alias
                    if name is not None or module == "jax":
                        found.append((module, name or module))
                    elif module.startswith("jax."):
                        found.append(("jax", "jax"))
    return [(module, name) for module, name in found if name != "tf"]


def _unused(short: str, used: set[str]) -> str:
    while short in used:
        short += "_"
    return short
