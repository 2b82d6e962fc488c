"""Single rewrites: what a call of TensorFlow becomes, and what stays under ``sg``."""

import pytest

from stratagem._src.migrate.codemod import migrate_source

HEADER = "import tensorflow as tf\n"


def body(text):
    """Returns a snippet after migration, without its imports."""
    after = migrate_source(HEADER + text).after
    return "\n".join(line for line in after.splitlines() if not line.startswith("import "))


REWRITTEN = [
    ("tf.reduce_sum(x, axis=1, keepdims=True)", "jnp.sum(x, axis=1, keepdims=True)"),
    ("tf.reduce_sum(x, 1, True)", "jnp.sum(x, 1, keepdims=True)"),
    ("tf.reduce_mean(input_tensor=x, axis=[0, 1])", "jnp.mean(x, axis=[0, 1])"),
    ("tf.math.reduce_max(axis=0, input_tensor=x)", "jnp.max(x, axis=0)"),
    ("tf.reduce_sum(x, name='total')", "jnp.sum(x)"),
    ("tf.argmax(x)", "jnp.argmax(x, axis=0)"),
    ("tf.argmax(x, -1)", "jnp.argmax(x, -1)"),
    ("tf.cumsum(x)", "jnp.cumsum(x, axis=0)"),
    ("tf.exp(x) + tf.math.log(y)", "jnp.exp(x) + jnp.log(y)"),
    ("tf.math.rsqrt(x + 1)", "jax.lax.rsqrt(x + 1)"),
    ("tf.asin(x)", "jnp.arcsin(x)"),
    ("tf.nn.relu(tf.matmul(x, w))", "jax.nn.relu(jnp.matmul(x, w))"),
    ("tf.nn.gelu(x)", "jax.nn.gelu(x, approximate=False)"),
    ("tf.nn.gelu(x, True)", "jax.nn.gelu(x, approximate=True)"),
    ("tf.nn.softmax(logits=x, axis=-1)", "jax.nn.softmax(x, axis=-1)"),
    ("tf.matmul(x, y, transpose_b=True)", "jnp.matmul(x, jnp.matrix_transpose(y))"),
    ("tf.linalg.matmul(a, b)", "jnp.matmul(a, b)"),
    ("tf.linalg.trace(x)", "jnp.trace(x, axis1=-2, axis2=-1)"),
    ("tf.einsum('ij,jk->ik', a, b)", "jnp.einsum('ij,jk->ik', a, b)"),
    ("tf.concat([a, b], axis=-1)", "jnp.concatenate([a, b], axis=-1)"),
    ("tf.concat(axis=1, values=[a, b])", "jnp.concatenate([a, b], axis=1)"),
    ("tf.stack([a, b], 1)", "jnp.stack([a, b], 1)"),
    ("tf.split(x, 2, axis=1)", "jnp.split(x, 2, axis=1)"),
    ("tf.where(c, x, 0.0)", "jnp.where(c, x, 0.0)"),
    ("tf.transpose(x, perm=[1, 0])", "jnp.transpose(x, axes=[1, 0])"),
    ("tf.expand_dims(x, -1)", "jnp.expand_dims(x, -1)"),
    ("tf.reshape(x, [tf.shape(x)[0], -1])", "jnp.reshape(x, [x.shape[0], -1])"),
    ("tf.reshape(x, tf.shape(y))", "jnp.reshape(x, y.shape)"),
    ("tf.shape(f(x))[1]", "jnp.shape(f(x))[1]"),
    ("tf.zeros([2, 3])", "jnp.zeros([2, 3])"),
    ("tf.ones([n], dtype=tf.int32)", "jnp.ones([n], dtype=jnp.int32)"),
    ("tf.fill([2], 0.5)", "jnp.full([2], 0.5)"),
    ("tf.range(n)", "jnp.arange(n)"),
    ("tf.one_hot(i, depth=10)", "jax.nn.one_hot(i, num_classes=10)"),
    ("tf.one_hot(i, 10, dtype=tf.float16)", "jax.nn.one_hot(i, 10, dtype=jnp.float16)"),
    ("tf.cast(x, tf.float32)", "jnp.asarray(x, jnp.float32)"),
    ("tf.cast(x, dtype='int32')", "jnp.asarray(x, 'int32')"),
    ("tf.cast(x > tf.exp(y), tf.float32)", "(x > jnp.exp(y)).astype(jnp.float32)"),
    ("tf.cast(tf.equal(x, y), z.dtype)", "jnp.equal(x, y).astype(z.dtype)"),
    ("tf.constant(0.5)", "jnp.float32(0.5)"),
    ("tf.constant([1, 2])", "jnp.array([1, 2])"),
    ("tf.constant(rows, tf.float32)", "jnp.array(rows, jnp.float32)"),
    ("tf.stop_gradient(x)", "jax.lax.stop_gradient(x)"),
    ("x[:, tf.newaxis]", "x[:, jnp.newaxis]"),
    ("x.dtype == tf.float16", "x.dtype == jnp.float16"),
    ("tf.Variable(x, dtype=tf.float32)", "sg.Variable(x, dtype=jnp.float32)"),
    ("tf.log(x)", "jnp.log(x)"),
    ("tf.compat.v1.reduce_sum(x)", "jnp.sum(x)"),
    ("tf.experimental.numpy.sum(x)", "jnp.sum(x)"),
]
STAYING = [
    "tf.reduce_sum([a, b])",  # JAX takes no lists
    "tf.reduce_sum(model.losses)",
    "tf.reduce_sum(*arguments)",
    "tf.reduce_sum(x, keepdims=flag)",
    "tf.argmax(x, output_type=tf.int64)",
    "tf.cast(x, tf.int64)",  # JAX's arrays have 32 bits by default
    "tf.cast(x, dtype)",
    "tf.constant('text')",
    "tf.constant(words)",
    "tf.concat([[n], tf.shape(x)], axis=0)",  # sizes, which stay on the host
    "tf.split(x, [1, 2])",
    "tf.split(x, sizes)",
    "tf.where(c)",
    "tf.math.rsqrt(v)",  # jax.lax takes no variables
    "tf.clip_by_value(x, 0, 1)",  # other gradients at the limits
    "tf.nn.leaky_relu(x)",
    "tf.gather(table, ids)",
    "tf.shape(x)",
    "tf.random.normal([2])",
    "tf.map_fn(tf.square, x)",
    "tf.keras.layers.Dense(1, activation=tf.nn.relu)",
    "tf.float32.name",
]


@pytest.mark.parametrize(("before", "after"), REWRITTEN)
def test_call_becomes_jax(before, after):
    assert body(before) == after


@pytest.mark.parametrize("call", STAYING)
def test_call_stays_under_sg(call):
    assert body(call) == call.replace("tf.", "sg.")


def test_mean_of_whole_numbers_stays_a_whole_number():
    assert body("tf.reduce_mean(tf.argmax(x, 1))") == "sg.reduce_mean(jnp.argmax(x, 1))"


def test_size_that_is_asked_for_its_value_stays():
    assert body("n = tf.shape(x)[0]\nprint(n.numpy())").startswith("n = sg.shape(x)[0]")
    assert body("tf.shape(x)[0].numpy()") == "sg.shape(x)[0].numpy()"


def test_loops_over_tf_range_stay_compiled_once():
    assert body("for i in tf.range(n):\n    f(i)") == "for i in sg.range(n):\n    f(i)"
    assert body("r = tf.range(n)\nfor i in r:\n    f(i)").startswith("r = sg.range(n)")


def test_lists_are_known_by_what_is_assigned():
    text = "losses = []\nlosses.append(x)\ntotal = tf.reduce_sum(losses)"
    assert body(text).endswith("sg.reduce_sum(losses)")


def test_functions_that_handle_strings_keep_what_takes_strings():
    text = "def parse(s):\n    t = tf.strings.split(s)\n    return tf.reshape(t, [-1]), tf.exp(s)"
    assert body(text).endswith("return sg.reshape(t, [-1]), jnp.exp(s)")
    text = "def f(s):\n    return tf.expand_dims(s, 0)\ndataset = dataset.map(f)"
    assert "sg.expand_dims(s, 0)" in body(text)


KERAS = [
    ("tf.keras.optimizers.Adam(lr=0.1)", "sg.keras.optimizers.Adam(learning_rate=0.1)"),
    ("tf.keras.optimizers.legacy.SGD(0.1)", "sg.keras.optimizers.SGD(0.1)"),
    ("tf.keras.optimizers.experimental.AdamW()", "sg.keras.optimizers.AdamW()"),
    ("f(reduction=tf.keras.losses.Reduction.NONE)", 'f(reduction="none")'),
    ("tf.keras.layers.experimental.preprocessing.Rescaling(2)", "sg.keras.layers.Rescaling(2)"),
    (
        "tf.keras.mixed_precision.experimental.set_policy('float16')",
        "sg.keras.mixed_precision.set_global_policy('float16')",
    ),
    ("metric.reset_states()", "metric.reset_state()"),
    ("self.add_weight('w', shape=(2,))", "self.add_weight(name='w', shape=(2,))"),
    ("optimizer.get_scaled_loss(loss)", "optimizer.scale_loss(loss)"),
    ("model.optimizer.lr.assign(0.1)", "model.optimizer.learning_rate.assign(0.1)"),
    ("x.shape.as_list()", "list(x.shape)"),
    ("x.get_shape().as_list()", "list(x.shape)"),
    ("x.get_shape()", "x.shape"),
    ("tf.gfile.Open(p)", "sg.io.gfile.Open(p)"),
    ("tf.io.gfile.exists(p)", "sg.io.gfile.exists(p)"),
    ("tf.compat.v1.data.Dataset", "sg.data.Dataset"),
    ("tf.compat.v1.enable_eager_execution()", "sg.compat.v1.enable_eager_execution()"),
]


@pytest.mark.parametrize(("before", "after"), KERAS)
def test_older_names_become_the_present_ones(before, after):
    assert body(before) == after


def test_methods_of_the_program_keep_their_names():
    text = "class Sampler:\n    def reset_states(self): ...\nSampler().reset_states()"
    assert body(text) == text
