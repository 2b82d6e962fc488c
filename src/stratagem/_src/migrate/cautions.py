"""Places where a program runs, but may compute something else than with TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from stratagem._src.migrate.control_flow import compiled_functions
from stratagem._src.migrate.findings import Finding, Kind
from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.program import Program

__all__ = ["cautions"]

_RANDOM = (
    "random numbers have the same distribution as TensorFlow's, but are other numbers, also with the same "
    "seed"
)
_NAMES = "a Keras 3 variable's name has no layer in it ('kernel', not 'dense/kernel:0'): filter by v.path"
_UNROLLED = (
    "a Python range around strategy.run in a compiled function is unrolled: write sg.range, which compiles "
    "the step once"
)
_BATCH_STATISTICS = (
    "under fit, BatchNormalization uses the statistics of the whole batch, not those of each replica's "
    "rows"
)
_SUMMED_TWICE = (
    "apply_gradients sums gradients over the replicas; these were all-reduced already. Leave one of the "
    "two out, or pass experimental_aggregate_gradients=False"
)
_DECAY = "Keras 3 optimizers have no decay: pass a schedule of keras.optimizers.schedules"
_OLD_METHODS = (
    "Keras 3 optimizers do not call {}: create slots in build(variables), and write "
    "update_step(gradient, variable, learning_rate)"
)
_METHODS_OF_KERAS_2 = (
    *(
        "_resource_apply_dense",
        "_resource_apply_sparse",
        "_resource_apply_sparse_duplicate_indices",
    ),
    *("_create_slots", "_create_all_weights"),
)
_OWN_AGGREGATION = {"experimental_aggregate_gradients", "skip_gradients_aggregation"}


def cautions(program: Program, inference: Inference) -> Iterator[Finding]:
    """Yields what to check, each with its line."""
    tests = (_random, _names, _unrolled, _batch_statistics, _summed_twice, _decay, _old_methods)
    for test in tests:
        for node, message in test(program, inference):
            yield Finding(program.line(node), Kind.CHECK, message)


_Found = Iterator[tuple[cst.CSTNode, str]]


def _random(program: Program, _: Inference) -> _Found:
    for node in program.nodes:
        name = program.called(node) or ""
        if name.startswith("random.") and not name.startswith(
            ("random.set_seed", "random.Generator")
        ):
            yield node, _RANDOM
            return  # the first says it for all


def _names(program: Program, _: Inference) -> _Found:
    """Finds ``"bias" in v.name`` and ``re.search(pattern, v.name)`` for variables that are looped over."""
    variables = set(_looped_variables(program))
    name_of_variable = m.Attribute(value=m.Name(), attr=m.Name("name"))
    for node in program.nodes:
        if not (isinstance(node, cst.Attribute) and m.matches(node, name_of_variable)):
            continue
        assert isinstance(node.value, cst.Name)
        if node.value.value not in variables:
            continue
        for around in program.parents(node):
            is_test = isinstance(around, cst.Comparison) or m.matches(
                around,
                m.Call(
                    func=m.Attribute(
                        attr=m.Name("search") | m.Name("match") | m.Name("endswith")
                        | m.Name("startswith")
                    )
                ),
            )  # fmt: skip
            if is_test:
                yield node, _NAMES
                break
            if isinstance(around, cst.BaseStatement):
                break


def _looped_variables(program: Program) -> Iterator[str]:
    """Yields names of loops over ``model.trainable_variables`` and its like, also in ``zip``."""
    lists = m.Attribute(
        attr=m.Name("trainable_variables") | m.Name("trainable_weights") | m.Name("variables")
        | m.Name("weights")
    )  # fmt: skip
    for node in program.nodes:
        if isinstance(node, cst.For | cst.CompFor):
            held = m.findall(node.iter, lists)
            by_name = any(
                isinstance(one, cst.Name) and ("var" in one.value or "weights" in one.value)
                for one in program.walk(node.iter)
            )
            if held or by_name:
                for target in program.walk(node.target):
                    if isinstance(target, cst.Name):
                        yield target.value


def _unrolled(program: Program, _: Inference) -> _Found:
    runs = m.Call(func=m.Attribute(attr=m.Name("run") | m.Name("experimental_run_v2")))
    over_range = m.Call(func=m.Name("range"))
    for function in compiled_functions(program):
        for node in program.walk(function.body):
            if not isinstance(node, cst.For) or not m.matches(node.iter, over_range):
                continue
            if m.findall(node.body, runs):
                yield node, _UNROLLED


def _batch_statistics(program: Program, _: Inference) -> _Found:
    is_distributed = any(
        (program.tensorflow_name(node) or "").startswith("distribute.") for node in program.nodes
    )
    calls_fit = m.findall(program.module, m.Call(func=m.Attribute(attr=m.Name("fit"))))
    if not (is_distributed and calls_fit):
        return
    for node in program.nodes:
        if program.called(node) == "keras.layers.BatchNormalization":
            yield node, _BATCH_STATISTICS
            return


def _summed_twice(program: Program, inference: Inference) -> _Found:
    for node in program.nodes:
        if not m.matches(node, m.Call(func=m.Attribute(attr=m.Name("apply_gradients")))):
            continue
        assert isinstance(node, cst.Call)
        if any(
            arg.keyword is not None and arg.keyword.value in _OWN_AGGREGATION for arg in node.args
        ):
            continue
        names = [n for arg in node.args for n in program.walk(arg) if isinstance(n, cst.Name)]
        if any(_is_all_reduced(inference, name) for name in names):
            yield node, _SUMMED_TWICE


def _is_all_reduced(inference: Inference, name: cst.Name) -> bool:
    reduced = m.Call(func=m.Attribute(attr=m.Name("all_reduce")))
    return any(m.matches(value, reduced) for value in inference.values(name) or ())


def _decay(program: Program, _: Inference) -> _Found:
    for node in program.nodes:
        if (program.called(node) or "").startswith("keras.optimizers."):
            assert isinstance(node, cst.Call)
            if any(arg.keyword is not None and arg.keyword.value == "decay" for arg in node.args):
                yield node, _DECAY


def _old_methods(program: Program, _: Inference) -> _Found:
    """Finds methods of optimizers that Keras 2 calls, and Keras 3 does not."""
    for node in program.nodes:
        if isinstance(node, cst.FunctionDef) and node.name.value in _METHODS_OF_KERAS_2:
            yield node, _OLD_METHODS.format(f"{node.name.value}()")
