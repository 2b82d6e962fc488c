"""Every primitive name that we compare with is one that the installed JAX uses."""

import ast
import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax._src import core
from jax._src.interpreters import mlir
from jax.experimental import io_callback

import stratagem
from stratagem._src.data.transforms import bit_exact_ops
from stratagem._src.jax_compat import primitives
from stratagem._src.jax_compat.primitives import called_jaxpr, collective_axes, is_dropped
from stratagem._src.partitioner import partitioned_program  # noqa: F401
from stratagem._src.partitioner.rules.rule import PARTIAL_RULES, RULES


def known_to_jax():
    platform = mlir._platform_specific_lowerings.values()
    lowered = {*mlir._lowerings, *(p for table in platform for p in table)}
    return {p.name for p in lowered} | {"debug_callback", "debug_print"}


ABSENT = primitives.FORMER_NAMES | primitives.CHANGED_NAMES


def names_in(module):
    for value in vars(module).values():
        if isinstance(value, frozenset):
            yield from value


def test_each_constant_names_a_primitive():
    constants = [getattr(primitives, name) for name in primitives.__all__ if name.isupper()]
    names = {n for c in constants for n in ([c] if isinstance(c, str) else c)}
    names |= set(primitives._CALLED_JAXPRS)
    assert names - known_to_jax() <= ABSENT
    assert not primitives.FORMER_NAMES & known_to_jax()


@pytest.mark.parametrize("table", [RULES, PARTIAL_RULES, set(names_in(bit_exact_ops))])
def test_each_rule_is_for_a_primitive(table):
    assert set(table) - known_to_jax() <= ABSENT


def literals_compared_with_primitives(tree):
    """Yields the strings that code compares with the name of a primitive, however it got that name."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        ways = {"primitive.name", "eqn.name", "equation.name"}
        names = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                targets, values = (
                    part.elts if isinstance(part, ast.Tuple) else [part]
                    for part in (node.targets[0], node.value)
                )
                pairs = zip(targets, values, strict=False)
                names |= {ast.unparse(a) for a, b in pairs if ast.unparse(b).endswith(tuple(ways))}
        for node in ast.walk(function):
            if not isinstance(node, ast.Compare):
                continue
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            if any(side in names or side.endswith(tuple(ways)) for side in sides):
                yield from (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))


def test_names_are_compared_by_their_constants():
    assert list(
        literals_compared_with_primitives(
            ast.parse("""
def f(eqn):
    name, params = eqn.primitive.name, eqn.params
    return name == "sin" or eqn.primitive.name in ("cos", "tan") or params == "abs"
""")
        )
    ) == ["sin", "cos", "tan"]
    package = pathlib.Path(stratagem.__file__).parent
    found = {
        (str(path.relative_to(package)), literal)
        for path in package.rglob("*.py")
        if "jax_compat" not in path.parts
        for literal in literals_compared_with_primitives(ast.parse(path.read_text()))
    }
    assert not found, "compare with constants of jax_compat/primitives.py: JAX renames primitives"


@jax.custom_jvp
def with_own_derivative(x):
    return jnp.sin(x)


with_own_derivative.defjvps(lambda tangent, result, x: tangent)


def only_equation(function, *args, **options):
    [eqn] = jax.make_jaxpr(function, **options)(*args).eqns
    return eqn


@pytest.mark.parametrize(
    ("names", "function"),
    [
        (primitives.CHECKPOINTS, jax.checkpoint(jnp.sin)),
        (primitives.JIT, jax.jit(jnp.sin)),
        ({primitives.CUSTOM_JVP}, with_own_derivative),
        ({primitives.COND}, lambda x: jax.lax.cond(True, jnp.sin, jnp.cos, x)),
        ({primitives.SCAN}, lambda x: jax.lax.scan(lambda c, _: (c, None), x, None, 2)[0]),
        ({primitives.WHILE}, lambda x: jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x)),
        (primitives.VALUE_CALLBACKS, lambda x: jax.pure_callback(abs, x, x)),
        (primitives.VALUE_CALLBACKS, lambda x: io_callback(abs, x, x)),
        (primitives.DEBUG_CALLBACKS, lambda x: jax.debug.callback(print, x)),
        (primitives.DEBUG_CALLBACKS, lambda x: jax.debug.print("{}", x)),
        ({primitives.OPTIMIZATION_BARRIER}, jax.lax.optimization_barrier),
    ],
)
def test_what_jax_traces_today(names, function):
    assert only_equation(function, jnp.float32(1)).primitive.name in names


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        (primitives.PSUM, jax.lax.psum),
        (primitives.PMAX, jax.lax.pmax),
        (primitives.PMIN, jax.lax.pmin),
        (primitives.ALL_GATHER, jax.lax.all_gather),
        (primitives.REDUCE_SCATTER, jax.lax.psum_scatter),
        (primitives.PPERMUTE, lambda x, axis: jax.lax.ppermute(x, axis, [(0, 1)])),
    ],
)
def test_collectives_and_their_axes(name, collective):
    eqn = only_equation(lambda x: collective(x, "a"), jnp.ones(2), axis_env=[("a", 2)])
    assert eqn.primitive.name == name
    assert collective_axes(eqn) == ("a",)
    assert collective_axes(only_equation(jnp.sin, jnp.ones(2))) == ()


def test_what_a_call_calls():
    for function in (jax.jit(jnp.sin), with_own_derivative):
        assert called_jaxpr(only_equation(function, 1.0)) is not None
    # Inlining a checkpointed call would undo it.
    assert called_jaxpr(only_equation(jax.checkpoint(jnp.sin), 1.0)) is None


def test_dropped_results():
    eqn = only_equation(jnp.sin, 1.0)
    assert not is_dropped(eqn.outvars[0])
    assert is_dropped(core.DropVar(eqn.outvars[0].aval))
