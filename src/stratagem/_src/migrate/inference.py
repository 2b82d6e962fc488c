"""What an expression certainly is, as far as the text says: a list, a string, a shape, an array.

Nothing is known about most names, such as parameters. A rewrite asks what would make it wrong, and what is
unknown counts as an array, which is what TensorFlow's functions are mostly given: a list where JAX needs an
array is an error in JAX, not another number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import libcst as cst
import libcst.matchers as m
from libcst.metadata import Assignment

from stratagem._src.migrate.program import Program, code

__all__ = ["Inference"]

_LIST_CALLS = {"list", "tuple", "zip", "map", "sorted", "set", "dict", "enumerate", "reversed"}
_LISTS_OF_KERAS = {
    "layers",
    "losses",
    "metrics",
    "metrics_names",
    "non_trainable_variables",
    "non_trainable_weights",
    "trainable_variables",
    "trainable_weights",
    "variables",
    "weights",
}
_SIZES = {"shape", "size", "rank", "shape_n", "broadcast_dynamic_shape"}
_INTEGER_TYPES = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_INTEGERS = {"argmax", "argmin", "argsort", "range", "math.argmax", "math.argmin"} | _SIZES
_MODULES_OF_ARRAYS = ("math.", "nn.", "linalg.", "random.", "image.", "bitwise.", "signal.")
_APPEND = m.Call(func=m.Attribute(value=m.Name(), attr=m.Name("append") | m.Name("extend")))
_OF_PYTHON = (cst.Is, cst.IsNot, cst.In, cst.NotIn)
_ARRAYS = {
    "Variable", "abs", "add", "add_n", "argmax", "argmin", "boolean_mask", "broadcast_to", "cast",
    "clip_by_norm", "clip_by_value", "concat", "constant", "convert_to_tensor", "cumsum", "divide",
    "einsum", "equal", "exp", "expand_dims", "fill", "floor", "gather", "gather_nd", "greater",
    "greater_equal", "identity", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "matmul", "maximum", "minimum", "multiply", "negative", "norm", "not_equal", "one_hot", "ones",
    "ones_like", "pad", "pow", "range", "reduce_all", "reduce_any", "reduce_logsumexp", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "reshape", "reverse", "round", "sigmoid",
    "sign", "sqrt", "square", "squeeze", "stack", "stop_gradient", "subtract", "tanh", "tensordot",
    "tile", "transpose", "where", "zeros", "zeros_like",
}  # fmt: skip


_Test = Callable[["Inference", cst.CSTNode], bool]


def _asked_once(test: _Test) -> _Test:
    """Keeps the answers of a test; while it is being answered, as for ``x`` in ``x = x + 1``, it is no."""

    @functools.wraps(test)
    def answer(self: Inference, node: cst.CSTNode) -> bool:
        key = (test.__name__, node)
        if key not in self._answers:
            self._answers[key] = False
            self._answers[key] = test(self, node)
        return self._answers[key]

    return answer


class Inference:
    """Answers questions about the expressions of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._answers: dict[tuple[str, cst.CSTNode], bool] = {}
        self._values: dict[object, list[cst.BaseExpression]] = {}
        self._attribute_values: dict[str, list[cst.BaseExpression]] = {}
        self._appended: set[str] = set()
        for node in program.nodes:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._record(target.target, node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                self._record(node.target, node.value)
            elif m.matches(node, _APPEND):
                assert isinstance(node, cst.Call)
                self._appended.add(code(node.func).partition(".")[0])

    def _record(self, target: cst.CSTNode, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Attribute):
            self._attribute_values.setdefault(target.attr.value, []).append(value)
        elif isinstance(target, cst.Name):
            self._values.setdefault(target, []).append(value)

    def values(self, name: cst.Name) -> list[cst.BaseExpression] | None:
        """Returns what is assigned to a name in its scope, or ``None`` if it is bound in another way."""
        scope = self._program.scope(name)
        if scope is None:
            return None
        found: list[cst.BaseExpression] = []
        for assignment in scope[name.value]:
            node = assignment.node if isinstance(assignment, Assignment) else None
            values = self._values.get(node)
            if values is None:
                return None
            found += values
        return found or None

    def attribute_values(self, name: str) -> list[cst.BaseExpression]:
        """Returns what is assigned anywhere to an attribute of this name."""
        return self._attribute_values.get(name, [])

    def _any_value(self, node: cst.CSTNode, test: Callable[[cst.CSTNode], bool]) -> bool:
        """Returns whether a test holds for something that a name or attribute is assigned."""
        if isinstance(node, cst.Name):
            return any(test(value) for value in self.values(node) or ())
        if isinstance(node, cst.Attribute):
            return any(test(value) for value in self.attribute_values(node.attr.value))
        return False

    @_asked_once
    def is_list(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression may be a list, a tuple or another collection of Python."""
        if isinstance(
            node, cst.List | cst.Tuple | cst.ListComp | cst.GeneratorExp | cst.Set | cst.SetComp
            | cst.Dict | cst.DictComp
        ):  # fmt: skip
            return True
        if isinstance(node, cst.Call):
            function = node.func
            if isinstance(function, cst.Name) and function.value in _LIST_CALLS:
                return True
            return self._program.called(node) in ("unstack", "split", "meshgrid", "nest.flatten")
        if isinstance(node, cst.BinaryOperation):
            return self.is_list(node.left) or self.is_list(node.right)
        if isinstance(node, cst.Name) and node.value in self._appended:
            return True
        if isinstance(node, cst.Attribute) and node.attr.value in _LISTS_OF_KERAS:
            return True
        return self._any_value(node, self.is_list)

    @_asked_once
    def is_string(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression is a string, or a list that begins with one."""
        if isinstance(node, cst.SimpleString | cst.FormattedString | cst.ConcatenatedString):
            return True
        if isinstance(node, cst.List | cst.Tuple):
            return any(self.is_string(element.value) for element in node.elements)
        if isinstance(node, cst.Call):
            name = self._program.called(node) or ""
            return name.startswith(("strings.", "lookup.", "io.")) or name in ("as_string",)
        return self._any_value(node, self.is_string)

    @_asked_once
    def is_size(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression is made of ``tf.shape(x)``, which is known while tracing."""
        if isinstance(node, cst.Call):
            name = self._program.called(node)
            if name in ("cast", "reduce_prod", "math.reduce_prod", "concat", "stack", "maximum"):
                return any(self.is_size(arg.value) for arg in node.args)
            return name in _SIZES
        if isinstance(node, cst.Subscript):
            return self.is_size(node.value)
        if isinstance(node, cst.BinaryOperation):
            if self.is_array(node.left) or self.is_array(node.right):
                return False
            return self.is_size(node.left) or self.is_size(node.right)
        if isinstance(node, cst.List | cst.Tuple):
            return any(self.is_size(element.value) for element in node.elements)
        return self._any_value(node, self.is_size)

    @_asked_once
    def is_integer(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression is certainly one of whole numbers."""
        if isinstance(node, cst.Integer):
            return True
        if isinstance(node, cst.Call):
            name = self._program.called(node)
            if name in ("cast", "constant", "zeros", "ones"):
                types = [self._program.tensorflow_name(arg.value) for arg in node.args]
                return any(one in _INTEGER_TYPES for one in types)
            return name in _INTEGERS
        if isinstance(node, cst.Subscript):
            return self.is_integer(node.value)
        if isinstance(node, cst.BinaryOperation):
            if isinstance(node.operator, cst.Divide):
                return False
            return self.is_integer(node.left) and self.is_integer(node.right)
        return self._any_value(node, self.is_integer)

    @_asked_once
    def is_array(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression is certainly an array, or a variable, of TensorFlow."""
        if isinstance(node, cst.Call):
            name = self._program.called(node)
            if name is None or self.is_size(node):
                return False
            return name in _ARRAYS or name.startswith(_MODULES_OF_ARRAYS)
        if isinstance(node, cst.Subscript):
            return self.is_array(node.value)
        if isinstance(node, cst.UnaryOperation):
            return self.is_array(node.expression)
        if isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
            return self.is_array(node.left) or self.is_array(node.right)
        if isinstance(node, cst.Comparison):
            if any(isinstance(one.operator, _OF_PYTHON) for one in node.comparisons):
                return False
            operands = [node.left, *(c.comparator for c in node.comparisons)]
            return any(self.is_array(one) for one in operands)
        return self._any_value(node, self.is_array)

    @functools.cached_property
    def host_functions(self) -> set[cst.CSTNode]:
        """Functions that handle strings or elements of a dataset, which are on the host."""
        return set(self._host_functions())

    def in_host_function(self, node: cst.CSTNode) -> bool:
        """Returns whether a node is in such a function."""
        return any(one in self.host_functions for one in self._program.parents(node))

    def _host_functions(self) -> Iterator[cst.CSTNode]:
        mapped = set(self._names_given_to_datasets())
        for node in self._program.nodes:
            if isinstance(node, cst.FunctionDef | cst.Lambda):
                is_mapped = isinstance(node, cst.FunctionDef) and node.name.value in mapped
                if is_mapped or any(self._is_of_host(one) for one in self._program.walk(node.body)):
                    yield node

    def _names_given_to_datasets(self) -> Iterable[str]:
        for node in self._program.nodes:
            if (
                isinstance(node, cst.Call)
                and isinstance(node.func, cst.Attribute)
                and node.func.attr.value in ("map", "filter", "flat_map", "interleave")
            ):
                for inner in (one for arg in node.args for one in self._program.walk(arg.value)):
                    if isinstance(inner, cst.Name):
                        yield inner.value

    def _is_of_host(self, node: cst.CSTNode) -> bool:
        name = self._program.tensorflow_name(node)
        if name is None or isinstance(self._program.parent(node), cst.Attribute):
            return False
        return name == "string" or name.startswith(("strings.", "io.", "lookup.", "sparse."))
