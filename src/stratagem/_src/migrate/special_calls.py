"""Calls that are written otherwise in JAX, and not only with other names."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from stratagem._src.migrate.arguments import ArgumentRewriter
from stratagem._src.migrate.call_rule import arguments_in_place
from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.jax_names import JaxNames
from stratagem._src.migrate.program import Program, code
from stratagem._src.migrate.rules import RULES

__all__ = ["SpecialCalls"]

_WITHOUT_PARENTHESES = (cst.Call, cst.Name, cst.Attribute, cst.Subscript)


class SpecialCalls:
    """Rewrites ``tf.cast``, ``tf.constant``, ``tf.matmul``, ``tf.range`` and their like."""

    def __init__(
        self,
        program: Program,
        inference: Inference,
        names: JaxNames,
        arguments: ArgumentRewriter,
    ) -> None:
        self._program = program
        self._infer = inference
        self._names = names
        self._arguments = arguments
        self._rewriters = {
            "cast": self._cast,
            "constant": self._constant,
            "convert_to_tensor": self._convert,
            "dtypes.cast": self._cast,
            "linalg.matmul": self._matmul,
            "matmul": self._matmul,
            "range": self._range,
        }

    def rewritten(
        self, name: str, original: cst.Call, updated: cst.Call
    ) -> cst.BaseExpression | None:
        """Returns what takes the place of a call of ``tf.<name>``, or ``None``."""
        rewrite = self._rewriters.get(name)
        return None if rewrite is None else rewrite(original, updated)

    def _cast(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        bound = _bound(original, updated, ("x", "dtype"))
        if bound is None or len(bound) != 2:
            return None
        (x, new_x), (dtype, new_dtype) = bound["x"], bound["dtype"]
        wanted = self._arguments.dtype_argument(dtype, new_dtype)
        if wanted is None or self._infer.is_list(x) or self._infer.is_string(x):
            return None
        is_float = (self._program.tensorflow_name(dtype) or "").startswith("float")
        if self._infer.is_size(x) and not is_float:
            return None
        if self._is_certain_array(x, new_x):
            if not _stands_alone(new_x):
                new_x = new_x.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            method = cst.Attribute(new_x, cst.Name("astype"))
            return cst.Call(method, [cst.Arg(wanted)], lpar=updated.lpar, rpar=updated.rpar)
        args = [cst.Arg(new_x), cst.Arg(wanted)]
        return updated.with_changes(
            func=self._arguments.name("jnp.asarray", original),
            args=arguments_in_place(updated.args, args),
        )

    def _is_certain_array(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> bool:
        """Returns whether an expression is an array of JAX, and not a variable or a number."""
        if isinstance(updated, cst.Call) and self._program.called(original) in RULES:
            return updated.func is not original and self._names.is_of_jax(updated.func)
        if isinstance(original, cst.BinaryOperation | cst.Comparison):
            return self._infer.is_array(original) and not self._infer.is_size(original)
        return False

    def _constant(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        bound = _bound(original, updated, ("value", "dtype"))
        if bound is None or "value" not in bound:
            return None
        value, new_value = bound["value"]
        wanted = None
        if "dtype" in bound:
            if (
                wanted := self._arguments.dtype_argument(*bound["dtype"])
            ) is None or self._infer.is_string(value):
                return None
        elif (scalar := _literal_type(value)) is not None:
            return cst.Call(self._arguments.name(f"jnp.{scalar}", original), [cst.Arg(new_value)])
        elif not _is_literal_list(value):
            return None
        args = [cst.Arg(new_value)] + ([] if wanted is None else [cst.Arg(wanted)])
        return updated.with_changes(
            func=self._arguments.name("jnp.array", original),
            args=arguments_in_place(updated.args, args),
        )

    def _convert(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        bound = _bound(original, updated, ("value", "dtype"))
        if bound is None or "value" not in bound:
            return None
        value, new_value = bound["value"]
        args = [cst.Arg(new_value)]
        if "dtype" in bound:
            wanted = self._arguments.dtype_argument(*bound["dtype"])
            if wanted is None or self._infer.is_string(value):
                return None
            args.append(cst.Arg(wanted))
        elif self._infer.is_list(value) or not self._infer.is_array(value):
            return None
        return updated.with_changes(
            func=self._arguments.name("jnp.asarray", original),
            args=arguments_in_place(updated.args, args),
        )

    def _matmul(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        bound = _bound(original, updated, ("a", "b", "transpose_a", "transpose_b"))
        if bound is None or not {"a", "b"} <= bound.keys():
            return None
        args = []
        for name in ("a", "b"):
            node, value = bound[name]
            flag = bound.get(f"transpose_{name}")
            if not self._arguments.may_be_array(node) or (
                flag is not None and not m.matches(flag[0], m.Name("True") | m.Name("False"))
            ):
                return None
            if flag is not None and m.matches(flag[0], m.Name("True")):
                value = cst.Call(
                    self._arguments.name("jnp.matrix_transpose", original), [cst.Arg(value)]
                )
            args.append(cst.Arg(value))
        return updated.with_changes(
            func=self._arguments.name("jnp.matmul", original),
            args=arguments_in_place(updated.args, args),
        )

    def _range(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        if self._is_looped_over(original):
            return None  # sg.range compiles the loop's body once
        args = []
        for old, new in zip(original.args, updated.args, strict=True):
            if old.star or self._infer.is_array(old.value) or isinstance(old.value, cst.Float):
                return None
            if old.keyword is None:
                args.append(new)
            elif old.keyword.value == "dtype":
                if (wanted := self._arguments.dtype_argument(old.value, new.value)) is None:
                    return None
                args.append(new.with_changes(value=wanted))
            else:
                return None
        positional = [arg for arg in original.args if arg.keyword is None]
        if len(positional) > 2 and not all(
            self._arguments.is_known_integer(arg.value) for arg in positional
        ):
            return None
        return updated.with_changes(func=self._arguments.name("jnp.arange", original), args=args)

    def _is_looped_over(self, call: cst.Call) -> bool:
        parent = self._program.parent(call)
        if isinstance(parent, cst.For | cst.CompFor):
            return True
        if not isinstance(parent, cst.Assign):
            return False
        names = {t.target.value for t in parent.targets if isinstance(t.target, cst.Name)}
        loops = (one for one in self._program.nodes if isinstance(one, cst.For | cst.CompFor))
        return any(isinstance(one.iter, cst.Name) and one.iter.value in names for one in loops)


def _stands_alone(node: cst.BaseExpression) -> bool:
    """Returns whether ``.astype`` may follow an expression as it is."""
    if node.lpar:
        return True
    text = code(node)
    try:  # a line break may need the parentheses of the call that was around it
        return isinstance(node, _WITHOUT_PARENTHESES) and (
            "\n" not in text or cst.parse_expression(text) is not None
        )
    except cst.ParserSyntaxError:
        return False


def _bound(
    original: cst.Call, updated: cst.Call, parameters: tuple[str, ...]
) -> dict[str, tuple[cst.BaseExpression, cst.BaseExpression]] | None:
    """Returns arguments by name, as they were and rewritten, or ``None`` if there are others."""
    found = {}
    for place, (old, new) in enumerate(zip(original.args, updated.args, strict=True)):
        name = parameters[place] if place < len(parameters) and old.keyword is None else None
        if old.keyword is not None:
            name = old.keyword.value
            if name == "name":
                continue
        if old.star or name not in parameters:
            return None
        found[name] = (old.value, new.value)
    return found


def _literal_type(node: cst.BaseExpression) -> str | None:
    if isinstance(node, cst.UnaryOperation):
        node = node.expression
    if isinstance(node, cst.Float):
        return "float32"
    return "int32" if isinstance(node, cst.Integer) else None


def _is_literal_list(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.List | cst.Tuple):
        return bool(node.elements) and all(
            _literal_type(one.value) is not None or _is_literal_list(one.value)
            for one in node.elements
        )
    return False
