"""Imports: every form of importing TensorFlow, under every name."""

import pytest

from stratagem._src.migrate.codemod import migrate_source

IMPORTS = [
    ("import tensorflow as tf\ntf.Variable(1)", "import stratagem as sg\nsg.Variable(1)"),
    ("import tensorflow\ntensorflow.Variable(1)", "import stratagem as sg\nsg.Variable(1)"),
    ("import os, tensorflow as t\nt.Module", "import os, stratagem as sg\nsg.Module"),
    (
        "import tensorflow.compat.v2 as tf  # the new one\ntf.exp(x)",
        "import jax.numpy as jnp  # the new one\njnp.exp(x)",
    ),
    ("import tensorflow.compat.v1\ntensorflow.Module", "import stratagem as sg\nsg.Module"),
    (
        "import tensorflow.compat.v1 as tf\ntf.Variable(tf.exp(x))",
        "import jax.numpy as jnp\nimport stratagem as sg\nsg.Variable(jnp.exp(x))",
    ),
    ("from tensorflow import keras\nkeras.Model()", "from stratagem import keras\nkeras.Model()"),
    (
        "from tensorflow.keras.layers import (\n    Dense,\n    Input as I,\n)\nDense(1)(I((2,)))",
        "from stratagem.keras.layers import (\n    Dense,\n    Input as I,\n)\nDense(1)(I((2,)))",
    ),
    (
        "from tensorflow.keras.layers.experimental.preprocessing import Rescaling\nRescaling(1)",
        "from stratagem.keras.layers import Rescaling\nRescaling(1)",
    ),
    ("import tensorflow.keras.backend as K\nK.clear_session()",
     "import stratagem.keras.backend as K\nK.clear_session()"),
    (
        "from tensorflow import exp, Variable as V\nV(exp(x))",
        "import jax.numpy as jnp\nfrom stratagem import Variable as V\nV(jnp.exp(x))",
    ),
    ("from tensorflow.math import log\nlog(x)", "import jax.numpy as jnp\njnp.log(x)"),
    ("import stratagem as tf\ntf.exp(x)", "import jax.numpy as jnp\njnp.exp(x)"),
    (
        "def f():\n    import tensorflow as tf\n    return tf.Variable(tf.nn.relu(x))",
        "def f():\n    import jax\n    import stratagem as sg\n    return sg.Variable(jax.nn.relu(x))",
    ),
    (
        "if a: import tensorflow as tf\ntf.Variable(tf.exp(x))",
        "if a: import stratagem as sg; import jax.numpy as jnp\nsg.Variable(jnp.exp(x))",
    ),
    ("import tensorflow as tf\nx: tf.Tensor = y", "import jax\nx: jax.Array = y"),
    ("import tensorflow as tf\nx: 'tf.Tensor' = y", "import stratagem as sg\nx: 'sg.Tensor' = y"),
    # numpy() of arrays needs Stratagem to be imported.
    (
        "import tensorflow as tf\ntf.exp(x).numpy()",
        "import jax.numpy as jnp\nimport stratagem as sg\njnp.exp(x).numpy()",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), IMPORTS)
def test_import(before, after):
    assert migrate_source(before).after == after


UNCHANGED = [
    "import jax.numpy as jnp\njnp.sum(x)",
    "import stratagem as sg\nsg.reduce_sum(x)",
    "import tensorflow_datasets as tfds\ntfds.load('mnist')",
    "from tensorflow.python.framework import ops\nops.x",
    "from .tensorflow import tf\ntf.reduce_sum(x)",
    "tf.reduce_sum(x)",
]


@pytest.mark.parametrize("text", UNCHANGED)
def test_other_imports_stay(text):
    assert migrate_source(text).after == text


def test_names_that_are_shadowed_mean_something_else():
    text = "import tensorflow as tf\ndef f(tf):\n    return tf.exp(1)\nf(tf.exp(x))"
    after = "import jax.numpy as jnp\ndef f(tf):\n    return tf.exp(1)\nf(jnp.exp(x))"
    assert migrate_source(text).after == after
    text = "import tensorflow as tf\nx.tf.exp(y)\nf(tf=tf.Module)"
    assert migrate_source(text).after.endswith("x.tf.exp(y)\nf(tf=sg.Module)")


def test_alias_stays_where_the_name_may_be_something_else():
    text = "try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None\nif tf: tf.Variable(1)"
    after = text.replace("import tensorflow as tf", "import stratagem as tf")
    assert migrate_source(text).after == after


def test_own_aliases_of_jax_are_used():
    text = "import jax.numpy as np\nimport tensorflow as tf\ny = np.sum(tf.exp(x))"
    assert migrate_source(text).after == "import jax.numpy as np\ny = np.sum(np.exp(x))"


def test_names_in_use_are_not_taken():
    text = "import tensorflow as tf\nsg, jnp = 1, 2\ntf.Variable(tf.exp(x))"
    after = "import jax.numpy as jnp_\nimport stratagem as sg_\nsg, jnp = 1, 2\nsg_.Variable(jnp_.exp(x))"
    assert migrate_source(text).after == after


def test_jax_is_imported_once():
    text = "import tensorflow as tf\nfrom tensorflow import exp, math\ntf.exp(math.log(exp(x)))\nmath.x"
    assert migrate_source(text).after.count("import jax.numpy") == 1
