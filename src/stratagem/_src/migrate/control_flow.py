"""Control flow on arrays in ``tf.function``, which needs AutoGraph: there is none here."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from stratagem._src.migrate.findings import Finding, Kind
from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.program import Program

__all__ = ["compiled_functions", "tensor_control_flow"]

_INSTEAD = {
    "if": "jnp.where, sg.cond or jax.lax.cond",
    "while": "sg.while_loop or jax.lax.while_loop",
    "for": "sg.scan, sg.map_fn or jax.lax.scan, or Python's loop over a list",
    "assert": "sg.debugging.assert_equal and its like",
}


def tensor_control_flow(program: Program, inference: Inference) -> Iterator[Finding]:
    """Yields ``if``, ``while`` and ``for`` on arrays in functions that are compiled."""
    for function in compiled_functions(program):
        for node in program.walk(function.body):
            found = _keyword(program, inference, node)
            if found is not None:
                message = (
                    f"`{found}` on an array in a compiled function: AutoGraph is not here, it raises "
                    f"while tracing; use {_INSTEAD[found]}"
                )
                yield Finding(program.line(node), Kind.LEFT, message)


def _keyword(program: Program, inference: Inference, node: cst.CSTNode) -> str | None:
    if isinstance(node, cst.If | cst.IfExp) and inference.is_array(node.test):
        return "if"
    if isinstance(node, cst.While) and inference.is_array(node.test):
        return "while"
    if isinstance(node, cst.Assert) and inference.is_array(node.test):
        return "assert"
    if isinstance(node, cst.For) and inference.is_array(node.iter):
        return None if program.called(node.iter) == "range" else "for"
    return None


def compiled_functions(program: Program) -> list[cst.FunctionDef]:
    """Returns the functions that ``tf.function`` compiles, and those of the file that they call."""
    by_name: dict[str, list[cst.FunctionDef]] = {}
    for node in program.nodes:
        if isinstance(node, cst.FunctionDef):
            by_name.setdefault(node.name.value, []).append(node)
    pending = [one for many in by_name.values() for one in many if _is_decorated(program, one)]
    for node in program.nodes:
        if isinstance(node, cst.Call) and program.called(node) == "function":
            for arg in node.args:
                if isinstance(arg.value, cst.Name):
                    pending += by_name.get(arg.value.value, [])
    found: dict[cst.FunctionDef, None] = {}
    while pending:
        function = pending.pop()
        if function in found:
            continue
        found[function] = None
        for node in program.walk(function.body):
            for name in _functions_used(node):
                pending += by_name.get(name, [])
    return list(found)


def _is_decorated(program: Program, function: cst.FunctionDef) -> bool:
    for decorator in function.decorators:
        expression = decorator.decorator
        name = program.called(expression) or program.tensorflow_name(expression)
        if name in ("function", "def_function.function"):
            return True
        if isinstance(expression, cst.Call):  # functools.partial(tf.function, ...)
            return any(program.tensorflow_name(arg.value) == "function" for arg in expression.args)
    return False


def _functions_used(node: cst.CSTNode) -> Iterator[str]:
    """Yields names of functions that a call calls, or passes on as ``strategy.run`` does."""
    if isinstance(node, cst.Call):
        for one in (node.func, *(arg.value for arg in node.args)):
            if isinstance(one, cst.Name):
                yield one.value
            elif isinstance(one, cst.Attribute) and m.matches(one.value, m.Name("self")):
                yield one.attr.value
