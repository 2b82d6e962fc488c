"""``TapeBlock``: a ``with tf.GradientTape()`` that is certainly the same as ``sg.value_and_grad``.

The block becomes a function, so what it does must not depend on being in place: it only assigns names,
in an order in which a function can, computes a scalar, and the gradient is asked for right after it.
Otherwise the tape stays, which works as in TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.program import Program, code

__all__ = ["TapeBlock", "find_block"]

_SCALARS = {
    "nn.compute_average_loss",
    "nn.scale_regularization_loss",
    "math.reduce_mean",
    "math.reduce_sum",
    "reduce_mean",
    "reduce_sum",
}
_VARIABLES = ("trainable_variables", "trainable_weights")
# Traced arrays have no value that these could show, and decayed weights tell None from zeros.
_VALUES_ASKED = m.Attribute(attr=m.Name("numpy")) | m.Call(
    func=m.Name("float") | m.Name("int") | m.Name("bool") | m.Name("print")
)
_UNUSUAL = m.NamedExpr() | m.Await() | m.Yield() | _VALUES_ASKED


@dataclass(frozen=True)
class TapeBlock:
    """A block that can be rewritten."""

    loss: str
    sources: cst.BaseExpression
    kept: tuple[str, ...]
    """Names that the block assigns and others use, in addition to the loss."""


def find_block(
    program: Program, inference: Inference, block: cst.CSTNode, following: cst.CSTNode
) -> TapeBlock | None:
    """Returns the block of a tape and its gradient, if the two can be rewritten.

    Args:
        program: The program.
        inference: What is known about it.
        block: A statement.
        following: The statement after it.
    """
    if not isinstance(block, cst.With) or len(block.items) != 1 or block.asynchronous is not None:
        return None
    item, body = block.items[0], block.body
    if program.called(item.item) != "GradientTape" or item.asname is None:
        return None
    assert isinstance(item.item, cst.Call)
    tape = item.asname.name
    gradient = _gradient(following, tape)
    if item.item.args or gradient is None or not isinstance(body, cst.IndentedBlock):
        return None
    loss, sources = gradient
    statements = list(_assignments(body.body))
    if not statements or None in statements:
        return None
    assigned = {name for one in statements if one is not None for name in one.names}
    scope = next(
        one
        for one in program.parents(block)
        if isinstance(one, cst.FunctionDef | cst.ClassDef | cst.Module)
    )
    around = [one for one in program.walk(scope) if isinstance(one, cst.Name)]
    inside = {one for one in program.walk(block) if isinstance(one, cst.Name)}
    later = {one.value for one in around if one not in inside} & assigned
    assert isinstance(tape, cst.Name)
    if (
        isinstance(scope, cst.ClassDef)
        or sum(one.value == tape.value for one in around) != 2  # as tape, and tape.gradient
        or not _is_in_order([one for one in statements if one is not None], assigned)
        or not _is_scalar(program, inference, loss, statements)
        or not _exist_before(program, inference, sources)
        or _asks_for_none(program, scope)
        or _is_differentiated_again(program, block, scope)
        or m.findall(body, _UNUSUAL)
        or any(isinstance(one, cst.Global | cst.Nonlocal) for one in program.walk(scope))
    ):
        return None
    return TapeBlock(loss.value, sources, tuple(sorted(later - {loss.value})))


@dataclass(frozen=True)
class _Assignment:
    names: frozenset[str]
    value: cst.BaseExpression
    reads_itself: bool


def _assignments(body: Sequence[cst.BaseStatement]) -> Iterator[_Assignment | None]:
    """Yields the assignments of a block, and ``None`` for statements of another kind."""
    for line in body:
        if not isinstance(line, cst.SimpleStatementLine):
            yield None
            continue
        for one in line.body:
            if isinstance(one, cst.Assign) and len(one.targets) == 1:
                targets = _names(one.targets[0].target)
                yield None if targets is None else _Assignment(targets, one.value, False)
            elif isinstance(one, cst.AugAssign) and isinstance(one.target, cst.Name):
                yield _Assignment(frozenset({one.target.value}), one.value, True)
            else:
                yield None


def _names(target: cst.BaseAssignTargetExpression) -> frozenset[str] | None:
    if isinstance(target, cst.Name):
        return frozenset({target.value})
    if isinstance(target, cst.Tuple) and all(
        isinstance(e.value, cst.Name) for e in target.elements
    ):
        return frozenset(e.value.value for e in target.elements if isinstance(e.value, cst.Name))
    return None


def _gradient(
    line: cst.CSTNode, tape: cst.BaseExpression
) -> tuple[cst.Name, cst.BaseExpression] | None:
    """Returns the arguments of ``gradients = tape.gradient(loss, sources)``."""
    call = m.Call(
        func=m.Attribute(value=m.Name(code(tape)), attr=m.Name("gradient")),
        args=[m.Arg(value=m.Name(), keyword=None, star=""), m.Arg(keyword=None, star="")],
    )
    if not m.matches(
        line, m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget()], value=call)])
    ):
        return None
    loss, sources = line.body[0].value.args  # type: ignore[attr-defined]
    return loss.value, sources.value


def _is_in_order(statements: Sequence[_Assignment], assigned: set[str]) -> bool:
    """Returns whether no name is read before the block has assigned it: in a function it is not known."""
    known: set[str] = set()
    for one in statements:
        read = {name.value for name in m.findall(one.value, m.Name())}  # type: ignore[attr-defined]
        if one.reads_itself:
            read |= one.names
        if (read & assigned) - known:
            return False
        known |= one.names
    return True


def _is_scalar(
    program: Program,
    inference: Inference,
    node: cst.BaseExpression,
    statements: Sequence[_Assignment | None],
) -> bool:
    """Returns whether an expression is certainly one number; a tape also takes others, and sums them."""
    if isinstance(node, cst.Integer | cst.Float):
        return True
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        return all(_is_scalar(program, inference, one, statements) for one in sides)
    if isinstance(node, cst.Attribute):
        return node.attr.value == "num_replicas_in_sync"
    if isinstance(node, cst.Call):
        name = program.called(node)
        if name in ("nn.compute_average_loss", "nn.scale_regularization_loss"):
            return True
        return name in _SCALARS and len(node.args) == 1
    if not isinstance(node, cst.Name):
        return False
    own = [one for one in statements if one is not None and node.value in one.names]
    if own:
        last = own[-1]
        is_plain = len(last.names) == 1 and not last.reads_itself
        earlier = statements[: statements.index(last)]
        return is_plain and _is_scalar(program, inference, last.value, earlier)
    values = inference.values(node)
    return values is not None and all(isinstance(v, cst.Integer | cst.Float) for v in values)


def _exist_before(program: Program, inference: Inference, node: cst.BaseExpression) -> bool:
    """Returns whether variables certainly exist before the block; a Keras model may make them in it."""
    if isinstance(node, cst.List | cst.Tuple):
        return bool(node.elements) and all(
            isinstance(one, cst.Element) and _exist_before(program, inference, one.value)
            for one in node.elements
        )
    if program.called(node) == "Variable":
        return True
    if isinstance(node, cst.Attribute) and node.attr.value in _VARIABLES:
        return _is_built(program, node)
    if isinstance(node, cst.Name):
        values = inference.values(node) or []
    elif isinstance(node, cst.Attribute):
        values = inference.attribute_values(node.attr.value)
    else:
        return False
    return bool(values) and all(_exist_before(program, inference, value) for value in values)


def _is_built(program: Program, variables: cst.Attribute) -> bool:
    """Returns whether the program gives these variables to ``optimizer.build``, or builds the model."""
    wanted, model = code(variables), code(variables.value)
    for node in program.nodes:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value != "build":
                continue
            if code(node.func.value) == model or wanted in (code(arg.value) for arg in node.args):
                return True
    return False


def _asks_for_none(program: Program, scope: cst.CSTNode) -> bool:
    """Returns whether a missing gradient matters: it is ``None`` from a tape, and zeros otherwise."""
    if m.findall(scope, m.ComparisonTarget(operator=m.Is() | m.IsNot(), comparator=m.Name("None"))):
        return True
    names = {node.value for node in program.nodes if isinstance(node, cst.Name)}
    return any("weight_decay" in name or "AdamW" in name for name in names)


def _is_differentiated_again(program: Program, block: cst.With, scope: cst.CSTNode) -> bool:
    """Returns whether a block is in that of another tape, or in a function that one calls."""
    own = scope.name.value if isinstance(scope, cst.FunctionDef) else None
    for node in program.nodes:
        if not isinstance(node, cst.With) or node is block:
            continue
        if not any(program.called(item.item) == "GradientTape" for item in node.items):
            continue
        inner = list(program.walk(node.body))
        if block in inner or any(isinstance(n, cst.Name) and n.value == own for n in inner):
            return True
    return False
