"""Calls of TensorFlow's functions, written with JAX where that gives the same."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from stratagem._src.migrate.arguments import ArgumentRewriter
from stratagem._src.migrate.call_rule import rule_of
from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.jax_names import JaxNames
from stratagem._src.migrate.program import Program
from stratagem._src.migrate.rules import RULES
from stratagem._src.migrate.special_calls import SpecialCalls

__all__ = ["CallRewriter"]

_V1 = "compat.v1."


class CallRewriter:
    """Rewrites one call after the other; what it cannot rewrite stays as it is."""

    def __init__(self, program: Program, inference: Inference, names: JaxNames) -> None:
        self._program = program
        self._infer = inference
        self._arguments = ArgumentRewriter(program, inference, names)
        self._special = SpecialCalls(program, inference, names, self._arguments)

    def rewritten(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        """Returns the call of JAX that takes the place of one of TensorFlow, or ``None``."""
        name = (self._program.called(original) or "").removeprefix(_V1)
        if name not in RULES:
            return self._special.rewritten(name, original, updated)
        rule = rule_of(RULES[name])
        if rule.takes_strings and self._infer.in_host_function(original):
            return None
        if name.endswith("reduce_mean") and any(
            self._infer.is_integer(arg.value) for arg in original.args[:1]
        ):
            return None  # whole numbers have a whole mean in TensorFlow
        args = rule.arguments(original, updated, self._arguments.converted)
        if args is None:
            return None
        return updated.with_changes(func=self._arguments.name(rule.target, original), args=args)

    def dtype_name(self, name: str) -> str | None:
        """Returns ``"jnp.float32"`` for ``"float32"``, if arrays of JAX can have that type."""
        return self._arguments.dtype_name(name)

    def shape_item(self, original: cst.Subscript, updated: cst.Subscript) -> cst.Subscript | None:
        """Returns ``x.shape[0]`` for ``tf.shape(x)[0]``, or ``None``."""
        call = original.value
        index = m.Integer() | m.UnaryOperation(operator=m.Minus(), expression=m.Integer())
        if not m.matches(
            original, m.Subscript(slice=[m.SubscriptElement(slice=m.Index(value=index))])
        ):
            return None
        if not isinstance(call, cst.Call) or not self._arguments.is_plain_shape(call):
            return None
        if self._has_attributes_asked(original):
            return None
        assert isinstance(updated.value, cst.Call)
        return updated.with_changes(value=self._arguments.shape(call, updated.value))

    def _has_attributes_asked(self, node: cst.CSTNode) -> bool:
        """Returns whether a program asks a size for ``numpy()`` or the like, which numbers do not have."""
        parent = self._program.parent(node)
        if isinstance(parent, cst.Attribute):
            return True
        if not isinstance(parent, cst.Assign):
            return False
        names = {t.target.value for t in parent.targets if isinstance(t.target, cst.Name)}
        return any(
            isinstance(one, cst.Attribute)
            and isinstance(one.value, cst.Name)
            and one.value.value in names
            for one in self._program.nodes
        )
