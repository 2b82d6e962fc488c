"""Keras 2 in calls and methods: arguments and attributes that Keras 3 has under other names."""

from __future__ import annotations

import libcst as cst

from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.program import Program

__all__ = ["KerasRewriter"]

_METHODS = {
    "fit_generator": "fit",
    "evaluate_generator": "evaluate",
    "predict_generator": "predict",
    "get_scaled_loss": "scale_loss",
    "reset_states": "reset_state",
}
_OPTIMIZERS = "keras.optimizers."


class KerasRewriter:
    """Rewrites what Keras 3 refuses, and ``x.shape.as_list()``, which a plain tuple does not have."""

    def __init__(self, program: Program, inference: Inference) -> None:
        self._program = program
        self._infer = inference
        self._own_methods = {
            node.name.value for node in program.nodes if isinstance(node, cst.FunctionDef)
        }

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Returns a call with the arguments of Keras 3."""
        name = self._program.called(original) or ""
        function = original.func
        if name.startswith(_OPTIMIZERS):
            return _renamed_argument(updated, "lr", "learning_rate")
        if not isinstance(function, cst.Attribute) or not isinstance(updated.func, cst.Attribute):
            return updated
        method = function.attr.value
        if method == "as_list" and not original.args and _is_shape(function.value):
            shape = _shape(updated.func.value)
            return cst.Call(
                cst.Name("list"), [cst.Arg(shape)], lpar=updated.lpar, rpar=updated.rpar
            )
        if method == "get_shape" and not original.args and not name:
            return _with_parentheses_of(_shape(updated), updated)
        if method == "add_weight" and original.args and _is_text(original.args[0]):
            first = updated.args[0].with_changes(
                keyword=cst.Name("name"),
                equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
            )
            if all(arg.keyword is not None for arg in updated.args[1:]):
                return updated.with_changes(args=[first, *updated.args[1:]])
        if method in _METHODS and method not in self._own_methods and not name:
            new = updated.func.with_changes(attr=cst.Name(_METHODS[method]))
            return updated.with_changes(func=new)
        return updated

    def attribute(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        """Returns ``optimizer.learning_rate`` for ``optimizer.lr``."""
        if original.attr.value != "lr" or not self._is_optimizer(original.value):
            return updated
        return updated.with_changes(attr=cst.Name("learning_rate"))

    def _is_optimizer(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.Name):
            values = self._infer.values(node) or []
        elif isinstance(node, cst.Attribute):
            if node.attr.value == "optimizer" and not self._infer.attribute_values("optimizer"):
                return True  # of a Keras model
            values = self._infer.attribute_values(node.attr.value)
        else:
            return False
        return bool(values) and all(
            (self._program.called(value) or "").startswith(_OPTIMIZERS) for value in values
        )


def _is_shape(node: cst.BaseExpression) -> bool:
    """Returns whether an expression reads ``x.shape`` or ``x.get_shape()``."""
    function = node.func if isinstance(node, cst.Call) else node
    return isinstance(function, cst.Attribute) and function.attr.value in ("shape", "get_shape")


def _shape(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.with_changes(attr=cst.Name("shape"))
    return node


def _with_parentheses_of(node: cst.BaseExpression, old: cst.Call) -> cst.BaseExpression:
    return node.with_changes(lpar=old.lpar, rpar=old.rpar)


def _is_text(arg: cst.Arg) -> bool:
    return arg.keyword is None and isinstance(arg.value, cst.SimpleString | cst.FormattedString)


def _renamed_argument(call: cst.Call, old: str, new: str) -> cst.Call:
    args = [
        arg.with_changes(keyword=cst.Name(new))
        if arg.keyword is not None and arg.keyword.value == old
        else arg
        for arg in call.args
    ]
    return call.with_changes(args=args)
