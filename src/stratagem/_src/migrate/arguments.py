"""Arguments of TensorFlow's functions as JAX takes them: arrays, shapes, element types."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from stratagem._src.migrate.call_rule import Parameter
from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.jax_names import JaxNames
from stratagem._src.migrate.program import Program

__all__ = ["ArgumentRewriter"]

_DTYPES = {
    "bfloat16": "bfloat16",
    "bool": "bool_",
    "complex64": "complex64",
    "float16": "float16",
    "float32": "float32",
    "half": "float16",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
}
"""Element types that arrays of JAX have in its default mode, which is one of 32 bits."""


class ArgumentRewriter:
    """Converts arguments; what JAX would take differently, it refuses."""

    def __init__(self, program: Program, inference: Inference, names: JaxNames) -> None:
        self._program = program
        self._infer = inference
        self._names = names

    def dtype(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """Returns ``jnp.float32`` for ``tf.float32``, if arrays of JAX can have that type."""
        name = self.dtype_name(self._program.tensorflow_name(node) or "")
        return None if name is None else self.name(name, node)

    def dtype_name(self, name: str) -> str | None:
        """Returns ``"jnp.float32"`` for ``"float32"``, if arrays of JAX can have that type."""
        found = _DTYPES.get(name.removeprefix("dtypes."))
        return None if found is None else f"jnp.{found}"

    def name(self, target: str, node: cst.CSTNode) -> cst.BaseExpression:
        return self._names.expression(target, self._program.imported_name(_function(node)))

    def converted(
        self, parameter: Parameter, original: cst.BaseExpression, updated: cst.BaseExpression
    ) -> cst.BaseExpression | None:
        match parameter.kind:
            case "array":
                return updated if self.may_be_array(original) else None
            case "computed":
                is_computed = isinstance(
                    original, cst.Call | cst.BinaryOperation | cst.UnaryOperation
                )
                return updated if is_computed and self.may_be_array(original) else None
            case "arrays":
                return updated if self.may_be_arrays(original) else None
            case "dtype":
                return self.dtype_argument(original, updated)
            case "shape":
                return self._shape_argument(original, updated)
            case "flag":
                return updated if m.matches(original, m.Name("True") | m.Name("False")) else None
            case "integer":
                return updated if self.is_known_integer(original) else None
            case "literal":
                return updated if isinstance(original, cst.List | cst.Tuple) else None
            case "never":
                return None
        return None if self._infer.is_string(original) and parameter.name == "axis" else updated

    def may_be_array(self, node: cst.BaseExpression) -> bool:
        return not (
            self._infer.is_list(node)
            or self._infer.is_string(node)
            or self._infer.is_size(node)
            or m.matches(node, m.Name("None"))
        )

    def may_be_arrays(self, node: cst.BaseExpression) -> bool:
        if self._infer.is_size(node) or self._infer.is_string(node):
            return False
        if isinstance(node, cst.List | cst.Tuple):
            return all(
                isinstance(one, cst.Element) and self.may_be_array(one.value)
                for one in node.elements
            )
        if isinstance(node, cst.ListComp):
            return self.may_be_array(node.elt)
        return True

    def is_known_integer(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
            node = node.expression
        if isinstance(node, cst.Name):
            values = self._infer.values(node)
            return values is not None and all(isinstance(one, cst.Integer) for one in values)
        return isinstance(node, cst.Integer)

    def dtype_argument(
        self, original: cst.BaseExpression, updated: cst.BaseExpression
    ) -> cst.BaseExpression | None:
        if (own := self.dtype(original)) is not None:
            return own
        if isinstance(original, cst.SimpleString):
            return updated if original.evaluated_value in _DTYPES else None
        is_of_array = isinstance(original, cst.Attribute) and original.attr.value == "dtype"
        return updated if is_of_array and self._program.imported_name(original) is None else None

    def _shape_argument(
        self, original: cst.BaseExpression, updated: cst.BaseExpression
    ) -> cst.BaseExpression | None:
        if isinstance(original, cst.Call) and isinstance(updated, cst.Call):
            if self.is_plain_shape(original):
                return self.shape(original, updated)
            return None if self._program.called(original) else updated
        return None if self._infer.is_array(original) else updated

    def is_plain_shape(self, call: cst.Call) -> bool:
        is_shape = self._program.called(call) == "shape" and len(call.args) == 1
        return is_shape and not call.args[0].star and not self._infer.is_list(call.args[0].value)

    def shape(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        x = updated.args[0].value
        if isinstance(x, cst.Name | cst.Attribute):
            return cst.Attribute(x, cst.Name("shape"))
        return updated.with_changes(
            func=self.name("jnp.shape", original), args=[updated.args[0].with_changes(keyword=None)]
        )


def _function(node: cst.CSTNode) -> cst.CSTNode:
    return node.func if isinstance(node, cst.Call) else node
