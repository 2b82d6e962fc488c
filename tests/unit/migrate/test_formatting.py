"""Comments and formatting stay, and a migrated program is not migrated again."""

import ast
import io
import re
import tokenize
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem._src.migrate.codemod import migrate_source

PROGRAM = '''\
#!/usr/bin/env python
"""About tf.reduce_sum(x)."""

# Licence.
import   os

# The library.
import tensorflow as tf  # noqa: F401


def loss( x,y ):

    # tf.square(x) is fine.
    total=tf.reduce_sum(
        tf.square(x  -  y),   # squared tf.errors
        axis = 1,
        keepdims=True,  # as tf wants it
    )
    s = "tf.reduce_sum(x)"; return total
'''


PAGE = Path(__file__).parents[3] / "docs" / "migrating.md"


def comments(text):
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def test_only_names_change():
    expected = (
        PROGRAM.replace("import tensorflow as tf", "import jax.numpy as jnp")
        .replace("=tf.reduce_sum(\n", "=jnp.sum(\n")
        .replace("        tf.square(", "        jnp.square(")
        .replace("axis = 1", "axis=1")
    )
    assert migrate_source(PROGRAM).after == expected


def test_documentation_shows_what_is_written():
    [shown] = re.findall("```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    before, after = (
        "".join(f"{line[1:]}\n" for line in shown.splitlines() if line[:1] in (" ", sign))
        for sign in "-+"
    )
    assert migrate_source(before).after == after


def test_line_ends_and_encodings_stay():
    text = "# -*- coding: latin-1 -*-\r\nimport tensorflow as tf\r\nx = tf.exp(y)  # é\r\n"
    found = migrate_source(text.encode("latin-1"))
    assert found.encoding.replace("_", "-") in ("iso-8859-1", "latin-1")
    assert found.after == text.replace("tensorflow as tf", "jax.numpy as jnp").replace(
        "tf.", "jnp."
    )


def test_comment_that_would_go_with_its_argument_keeps_the_call():
    text = "import tensorflow as tf\ny = tf.exp(\n    x,  # in\n    name='e',  # shown\n)\n"
    assert migrate_source(text).after == text.replace(
        "tensorflow as tf", "stratagem as sg"
    ).replace("tf.", "sg.")


def test_file_without_tensorflow_is_not_touched():
    assert not migrate_source("import numpy as np\nx = np.sum( [1] )").changed


NAMES = st.sampled_from(
    ["x", "self.x", "x[0]", "f(x)", "(x + y)", "[x, y]", "x.shape", "-x", "2.0"]
)
FUNCTIONS = st.sampled_from(
    ["reduce_sum", "math.exp", "nn.softmax", "cast", "shape", "concat", "reshape", "constant", "Variable",
     "one_hot", "keras.layers.Dense", "where", "range", "nn.gelu", "random.normal", "compat.v1.log"]
)  # fmt: skip
EXTRAS = st.sampled_from(
    [
        "",
        "axis=1",
        "tf.float32",
        "keepdims=True",
        "name='n'",
        "[2, -1]",
        "*args",
        "tf.int64",
        "\n  ",
    ]
)
STATEMENTS = st.sampled_from(
    ["y = {}", "return_value: tf.Tensor = {}  # tf", "if {}: pass", "for i in {}: pass", "f(y={})",
     "def g(tf={}):\n    return tf.exp(1)", "class A(tf.Module):\n    a = {}",
     "with tf.GradientTape() as t:\n    z = {}\ng = t.gradient(z, w)",
     "{}.shape.as_list()"]
)  # fmt: skip
IMPORTS = st.sampled_from(
    ["import tensorflow as tf", "import tensorflow as tf  # comment", "import stratagem as tf",
     "import tensorflow.compat.v1 as tf", "import os, tensorflow as tf",
     "try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None"]
)  # fmt: skip


@st.composite
def calls(draw, depth=2):
    if depth == 0:
        return draw(NAMES)
    first = draw(calls(depth=depth - 1))
    extra = draw(EXTRAS)
    return f"tf.{draw(FUNCTIONS)}({first}{', ' if extra.strip() else ''}{extra})"


@settings(max_examples=15, deadline=None)
@given(IMPORTS, st.lists(st.tuples(STATEMENTS, calls()), min_size=1, max_size=5))
def test_migrating_again_changes_nothing(first, parts):
    text = "\n".join([first, *(statement.format(call) for statement, call in parts), ""])
    once = migrate_source(text).after
    ast.parse(once)
    assert comments(once) == comments(text)
    assert migrate_source(once).after == once
