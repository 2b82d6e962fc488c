"""Calls give the same numbers and dtypes after they are rewritten, and have the same gradients."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.migrate.call_rule import rule_of
from stratagem._src.migrate.codemod import migrate_source
from stratagem._src.migrate.rules import RULES

RNG = np.random.default_rng(0)
VALUES = {
    "x": jnp.asarray(RNG.uniform(0.1, 0.9, (3, 4)), jnp.float32),
    "y": jnp.asarray(RNG.uniform(1.1, 1.9, (3, 4)), jnp.float32),
    "i": jnp.asarray([[2, 0, 1], [1, 5, 3]], jnp.int32),
    "c": jnp.asarray([[True], [False], [True]]),
    "square": jnp.asarray(np.eye(3) * 2 + RNG.uniform(size=(3, 3)), jnp.float32),
    "n": np.arange(6, dtype=np.float32).reshape(2, 3),
    "v": sg.Variable(RNG.uniform(size=(3, 4)).astype(np.float32)),
    "half": jnp.asarray([[0.5, -0.25]], jnp.float16),
}
# Functions that are defined elsewhere, or take something else than one float array.
ARGUMENTS = {
    "acosh": ["y"],
    "argmax": ["x", "x, 1", "i, axis=-1"],
    "argmin": ["x", "v, 1"],
    "atan2": ["x, y"],
    "broadcast_to": ["x, [2, 3, 4]"],
    "concat": ["[x, y], 0", "axis=1, values=[x, v]"],
    "cumprod": ["x", "x, 1"],
    "cumsum": ["x", "i, axis=1"],
    "det": ["square"],
    "einsum": ["'ij,kj->ik', x, v"],
    "expand_dims": ["x, -1", "v, axis=0"],
    "eye": ["3", "2, 3", "2, dtype=tf.int32"],
    "fill": ["[2, 3], 0.5", "[2], 7"],
    "floormod": ["i, 2", "x, 0.3"],
    "inv": ["square"],
    "linspace": ["0.0, 1.0, 5"],
    "logical_and": ["c, c"],
    "logical_not": ["c"],
    "logical_or": ["c, c"],
    "logical_xor": ["c, c"],
    "mod": ["i, 2"],
    "norm": ["x", "x, axis=1", "v, axis=0, keepdims=True"],
    "one_hot": ["i, 4", "i, depth=6, dtype=tf.int32", "i, 3, axis=1"],
    "ones": ["[2, 3]", "shape=[2], dtype=tf.float16"],
    "ones_like": ["i", "x, tf.int32"],
    "pad": ["x, [[1, 0], [0, 2]]"],
    "pow": ["x, 2.0", "x, y"],
    "reduce_all": ["c", "c, 0"],
    "reduce_any": ["c", "c, axis=[0, 1], keepdims=True"],
    "repeat": ["x, 2, axis=0"],
    "reshape": ["x, [4, -1]", "tensor=i, shape=[6]"],
    "reverse": ["x, [0]", "x, axis=[0, 1]"],
    "roll": ["x, 1, 0", "x, shift=-1, axis=1"],
    "round": ["x * 7", "i"],
    "rsqrt": ["x + 1.0"],
    "split": ["x, 2, 1", "x, num_or_size_splits=3"],
    "squeeze": ["x[:1]", "x[:, :1], axis=[1]"],
    "stack": ["[x, y]", "[x, v], axis=-1"],
    "tensordot": ["x, y, [[0, 1], [0, 1]]", "x, square, axes=[[0], [1]]"],
    "tile": ["x, [2, 1]"],
    "trace": ["square"],
    "transpose": ["x", "x, perm=[1, 0]"],
    "where": ["c, x, 0.0", "c, x, y"],
    "zeros": ["[2, 3]", "[3], tf.int32"],
    "zeros_like": ["i", "v"],
}  # fmt: skip
OTHERS = [
    "tf.cast(x, tf.int32)",
    "tf.cast(i, tf.float32)",
    "tf.cast(v, tf.float16)",
    "tf.cast(x > y, tf.float32)",
    "tf.cast(3, tf.float32)",
    "tf.constant(0.5) * half",
    "tf.constant([[1, 2], [3, 4]])",
    "tf.constant(n, tf.float32)",
    "tf.convert_to_tensor(n, tf.float32)",
    "tf.matmul(x, v, transpose_b=True)",
    "tf.matmul(x, y, transpose_a=True)",
    "tf.range(4)",
    "tf.range(1, 7, 2)",
    "tf.reshape(x, tf.shape(y))",
    "tf.reshape(x, [tf.shape(x)[1], -1])",
]


def defaults(name, rule):
    if "math." in f"{name}." or "." not in name:
        if len([p for p in rule.parameters if p.kind == "array"]) == 2:
            return ["x, y", "v, 0.5"]
        if name.rpartition(".")[2].startswith("reduce_"):
            return ["x", "v, 1", "input_tensor=x, axis=[0, 1], keepdims=True", "n, 0, True"]
    return ["x", "v", "n / 10"]


def calls():
    for name, text in RULES.items():
        if not name.startswith("math.") and f"math.{name}" in RULES:
            continue  # the same functions, of which some are only in tf.math
        given = ARGUMENTS.get(name.rpartition(".")[2]) or defaults(name, rule_of(text))
        yield from (f"tf.{name}({arguments})" for arguments in given)
    yield from OTHERS


@functools.cache
def programs():
    """Returns for each call what it was and what it is now, all of them migrated as one program."""
    before = [f"found = {call}" for call in calls()]
    after = migrate_source("\n".join(["import tensorflow as tf", *before, ""])).after
    lines = [line for line in after.splitlines() if not line.startswith("import ")]
    return list(zip(before, lines, strict=True))


def evaluated(line, values):
    namespace = {"tf": sg, "jax": jax, "jnp": jnp, **values}
    exec(line, namespace)
    return jax.tree.leaves(namespace["found"])


QUARTERS = [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))]


@pytest.mark.parametrize("quarter", QUARTERS)
def test_numbers_are_the_same(quarter):
    assert len(programs()) > 150
    for before, after in programs()[quarter::4]:
        assert "sg." not in after
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = evaluated(before, VALUES), evaluated(after, VALUES)
        for expected, given in zip(*results, strict=True):
            assert given.dtype == expected.dtype, after
            np.testing.assert_array_equal(given, expected, err_msg=after)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gradients_are_the_same():
    """Also at 0, where some functions have a kink."""
    x = jnp.asarray([[0.0, 0.3, 0.9, 0.3], [0.0, 0.0, 0.5, 1.0], [0.2, 1.0, 0.0, 0.1]])

    def total(x, line):
        leaves = evaluated(line, VALUES | {"x": x, "v": VALUES["y"]})
        return sum((jnp.sum(leaf).astype(jnp.float32) for leaf in leaves), jnp.float32(0))

    pairs = [pair for pair in programs() if "x" in pair[1].partition("(")[2]]
    for before, after in zip(
        *(
            jax.jit(lambda x, lines=lines: [jax.grad(total)(x, line) for line in lines])(x)
            for lines in zip(*pairs, strict=True)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(after, before, rtol=1e-6)
