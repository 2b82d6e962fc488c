"""What is left to do by hand, and what to check, each with its line."""

import pytest

from stratagem._src.migrate.codemod import migrate_source
from stratagem._src.migrate.findings import Kind

FIRST = "import tensorflow as tf\n"
LEFT = {
    "tf.estimator.Estimator(f)": "a loop of your own over sg.function, or Keras",
    "tf.compat.v1.Session()": "there are no graphs and sessions",
    "tf.compat.v1.placeholder(tf.float32)": "an argument of a function",
    "tf.py_function(f, [x], tf.float32)": "jax.pure_callback",
    "tf.hessians(y, x)": "jax.hessian(f)(x)",
    "tf.contrib.slim": "TensorFlow itself has dropped it",
    "tf.keras.backend.learning_phase()": "the argument training",
    "tf.keras.preprocessing.image.ImageDataGenerator()": "image_dataset_from_directory",
    "from tensorflow.python.ops import x": "not a public module",
    "import tensorflow_probability as tfp": "tensorflow_probability.substrates.jax",
    "from tensorflow import *": "not followed",
    "@tf.function\ndef f(x):\n if tf.reduce_sum(x) > 0: pass": "`if` on an array",
    "@tf.function\ndef f(x):\n while tf.less(x, 1): pass": "`while` on an array",
    "@tf.function\ndef f(x):\n for row in tf.exp(x): pass": "`for` on an array",
    "v = tf.Variable(1)\ndef g():\n if v > 1: pass\nf = tf.function(g)": "`if` on an array",
    "def g(x):\n y = x * tf.exp(x)\n if y > 0: pass\n@tf.function\ndef f(x): s.run(g)": "`if` on",
}
CHECK = {
    "x = [v for v in m.trainable_variables if 'bias' not in v.name]": "filter by v.path",
    "tf.random.normal([2])": "other numbers",
    "@tf.function\ndef f(i):\n for _ in range(3):\n  s.run(g)": "is unrolled: write sg.range",
    "tf.distribute.MirroredStrategy()\ntf.keras.layers.BatchNormalization()\nm.fit(x)": "whole batch",
    "def f(c):\n g = c.all_reduce('SUM', h)\n o.apply_gradients(zip(g, v))": "sums gradients",
    "tf.keras.optimizers.SGD(0.1, decay=1e-6)": "have no decay",
    "class O(tf.keras.optimizers.legacy.Optimizer):\n def _create_slots(self, v): pass": "build(var",
}
FINE = [
    "class M(tf.keras.Model):\n def train_step(self, data): pass",
    "tf.reduce_sum(x, keepdims=k)",
    "tf.log(x)",
    "tf.distribute.MirroredStrategy()",
    "tf.keras.optimizers.legacy.Adam()",
    "@tf.function\ndef f(x, training):\n if training: pass\n if x is None: pass",
    "@tf.function\ndef f(x):\n for i in tf.range(3): s.run(g)",
    "def f(x):\n if tf.reduce_sum(x) > 0: pass",  # not compiled
    "@tf.function\ndef f(x):\n if tf.shape(x)[0] > 1: pass",  # known while tracing
    "def f(c):\n g = c.all_reduce('SUM', h)\n"
    " o.apply_gradients(zip(g, v), experimental_aggregate_gradients=False)",
    "for layer in layers:\n if 'a' in layer.name: pass",
]


def findings(text):
    return migrate_source(FIRST + text).findings


@pytest.mark.parametrize("text", LEFT)
def test_what_is_left_is_listed(text):
    [found] = [one for one in findings(text) if one.kind is Kind.LEFT]
    assert LEFT[text] in found.message
    assert 2 <= found.line <= 1 + len(text.splitlines())


@pytest.mark.parametrize("text", CHECK)
def test_what_may_differ_is_listed(text):
    [found] = findings(text)
    assert found.kind is Kind.CHECK
    assert CHECK[text] in found.message


@pytest.mark.parametrize("text", FINE)
def test_nothing_is_said_about(text):
    assert findings(text) == ()


def test_lines_are_those_of_the_file():
    text = "x = 1\n\n\ntf.hessians(y, x)\n\ntf.gradients(y, x)\n"
    assert [one.line for one in findings(text)] == [5, 7]
