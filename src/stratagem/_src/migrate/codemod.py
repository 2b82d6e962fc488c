"""``migrate_source``: the text of a program for TensorFlow as one for JAX and Stratagem."""

from __future__ import annotations

import re

import libcst as cst

from stratagem._src.migrate.calls import CallRewriter
from stratagem._src.migrate.findings import Migration
from stratagem._src.migrate.import_rewriter import ImportRewriter
from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.jax_names import JaxNames
from stratagem._src.migrate.keras2 import KerasRewriter
from stratagem._src.migrate.new_names import new_name
from stratagem._src.migrate.program import ImportedName, Program, code
from stratagem._src.migrate.review import review
from stratagem._src.migrate.tapes import TapeRewriter

__all__ = ["migrate_source"]

# Functions whose element types are JAX's as well as NumPy's.
_NOT_ARRAYS = ("keras.", "io.", "data.", "lookup.", "strings.", "sparse.", "py_function")


def migrate_source(source: str | bytes) -> Migration:
    r"""Returns a program with JAX's names, and what is left to do by hand.

    Args:
        source: The text or the bytes of a Python file.

    Raises:
        libcst.ParserSyntaxError: If it is not Python.

    >>> program = "import tensorflow as tf\ny = tf.reduce_sum(x, 1)  # rows"
    >>> print(migrate_source(program).after)
    import jax.numpy as jnp
    y = jnp.sum(x, 1)  # rows
    """
    program = Program(source)
    before = after = program.module.code
    inference = Inference(program)
    rewritten: set[cst.CSTNode] = set()
    if program.imported:
        rewriter = _Rewriter(program, inference)
        # Imports come before what they are for: the first visit finds out what that is.
        program.module.visit(rewriter)
        rewriter.is_final = True
        after = program.module.visit(rewriter).code
        rewritten = rewriter.rewritten
    findings = tuple(sorted(set(review(program, inference, rewritten))))
    return Migration(before, after, program.module.encoding, findings)


def _count_comments(node: cst.CSTNode) -> int:
    """Counts the marks of comments; those in strings are in both texts that are compared."""
    return code(node).count("#")


class _Rewriter(cst.CSTTransformer):
    """Rewrites from the inside: arguments before calls."""

    def __init__(self, program: Program, inference: Inference) -> None:
        super().__init__()
        self.is_final = False
        self._program = program
        self._names = JaxNames(program)
        self._calls = CallRewriter(program, inference, self._names)
        self._keras = KerasRewriter(program, inference)
        self._imports = ImportRewriter(program, self._names)
        self._tapes = TapeRewriter(program, inference, self._names, self._imports)
        self._annotations = {text: one for one in program.imported for text in one.annotations}

    @property
    def rewritten(self) -> set[cst.CSTNode]:
        """The roots of names that have become JAX's."""
        return self._imports.dropped

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Rewrites a call."""
        with self._names.proposed() as proposal:
            found = self._calls.rewritten(original_node, updated_node)
            if found is not None and _count_comments(found) == _count_comments(updated_node):
                proposal.accepted = True
                self._imports.drop(original_node.func)
                return found
        return self._keras.call(original_node, updated_node)

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        """Rewrites ``tf.shape(x)[0]``."""
        found = self._calls.shape_item(original_node, updated_node)
        if found is None:
            return updated_node
        assert isinstance(original_node.value, cst.Call)
        self._imports.drop(original_node.value.func)
        return found

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        """Rewrites a name of TensorFlow that stays one, an element type, or an attribute of Keras 2."""
        name = self._program.tensorflow_name(original_node)
        if name is None:
            return self._keras.attribute(original_node, updated_node)
        parent = self._program.parent(original_node)
        if isinstance(parent, cst.Attribute):
            return updated_node
        imported = self._program.imported_name(original_node)
        assert imported is not None
        target = self._target(original_node, name, imported)
        if target is None:
            return updated_node
        if target.startswith(("jax.", "jnp.", '"')):
            self._imports.drop(original_node)
        return self._names.expression(target, imported).with_changes(
            lpar=updated_node.lpar, rpar=updated_node.rpar
        )

    def _target(self, node: cst.Attribute, name: str, imported: ImportedName) -> str | None:
        if name == "Tensor" and self._is_annotation(node):
            return "jax.Array"
        if (dtype := self._calls.dtype_name(name)) is not None and self._is_array_argument(node):
            return dtype
        new = new_name(name)
        if new is None:
            return None
        if new.startswith("sg.") and not imported.is_whole_package:
            below = new.removeprefix(f"sg.{imported.prefix}.")
            return None if below == new else f"{imported.name}.{below}"
        if new.startswith("sg.") and not self._imports.renames(imported.name):
            return None
        return new

    def _is_annotation(self, node: cst.CSTNode) -> bool:
        for around in self._program.parents(node):
            if isinstance(around, cst.Annotation):
                return True
            if isinstance(around, cst.BaseStatement | cst.Call):
                return False
        return False

    def _is_array_argument(self, node: cst.CSTNode) -> bool:
        parent = self._program.parent(node)
        if isinstance(parent, cst.Comparison | cst.ComparisonTarget):
            return True
        call = self._program.parent(parent) if isinstance(parent, cst.Arg) else None
        called = self._program.called(call)
        return called is not None and not called.startswith(_NOT_ARRAYS)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Renames an alias of TensorFlow."""
        imported = self._program.imported_name(original_node)
        if imported is None or not self._imports.renames(imported.name):
            return updated_node
        target = ".".join(part for part in ("sg", imported.prefix) if part)
        return self._names.expression(target, None).with_changes(
            lpar=updated_node.lpar, rpar=updated_node.rpar
        )

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        """Renames an alias of TensorFlow in an annotation that is a string."""
        imported = self._annotations.get(original_node)
        if imported is None or not self._imports.renames(imported.name):
            return updated_node
        new = re.sub(rf"\b{imported.name}\.", f"{self._names.names['sg']}.", updated_node.value)
        return updated_node.with_changes(value=new)

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        """Rewrites ``import tensorflow as tf``."""
        return self._imports.statement(original_node, updated_node)

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        """Rewrites ``from tensorflow import keras``."""
        return self._imports.from_statement(original_node, updated_node)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        """Adds the imports of JAX to those of TensorFlow."""
        return self._imports.line(original_node, updated_node) if self.is_final else updated_node

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        """Adds them in ``if x: import tensorflow as tf``, too."""
        return self._imports.suite(original_node, updated_node)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Rewrites blocks of ``GradientTape``."""
        body = self._tapes.statements(original_node.body, updated_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Rewrites blocks of ``GradientTape`` that are not in a function."""
        body = self._tapes.statements(original_node.body, updated_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)
