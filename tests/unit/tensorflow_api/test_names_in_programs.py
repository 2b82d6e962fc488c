"""Names of TensorFlow in programs: compiled, in replicas, in ``Dataset.map``, in checkpoints."""

import contextlib
import importlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import stratagem as tf


@pytest.fixture
def two_replicas():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def test_arrays_are_tensors():
    seen = []

    @tf.function
    def step(x):
        seen.append(isinstance(x, tf.Tensor))
        return x

    assert isinstance(step(tf.zeros([2])), tf.Tensor)
    assert seen == [True]
    assert isinstance(tf.io.decode_raw(b"ab", tf.uint8), tf.Tensor)
    assert not isinstance(np.zeros(2), tf.Tensor)
    assert not isinstance(tf.Variable(1.0), tf.Tensor)


def test_print_in_a_compiled_function_prints_what_runs(capsys):
    @tf.function
    def step(x):
        tf.print("x:", x, [x], output_stream=sys.stdout)
        return x + 1

    step(tf.constant([1.0, 2.5]))
    step(tf.constant([3.0, 4.0]))
    jax.effects_barrier()
    assert capsys.readouterr().out == "x: [1 2.5] [[1 2.5]]\nx: [3 4] [[3 4]]\n"


def test_print_goes_to_stderr(capsys):
    tf.print("eager", tf.Variable(2.0))
    assert capsys.readouterr().err == "eager 2\n"


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("in_scope", [False, True])
def test_variables_of_keras_print_their_values(two_replicas, capsys, compiled, in_scope):
    with two_replicas.scope() if in_scope else contextlib.nullcontext():
        count = tf.keras.Variable(10, dtype="int32")

    def show():
        tf.print("step", count, [count])

    (tf.function(show) if compiled else show)()
    jax.effects_barrier()
    assert capsys.readouterr().err == "step 10 [10]\n"


@pytest.mark.parametrize("compiled", [False, True])
def test_each_replica_prints_its_own(two_replicas, capsys, compiled):
    def step():
        replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
        tf.print("replica", replica_id, output_stream=sys.stdout)
        return replica_id

    def run():
        return two_replicas.run(step)

    (tf.function(run) if compiled else run)()
    jax.effects_barrier()
    assert sorted(capsys.readouterr().out.splitlines()) == ["replica 0", "replica 1"]


def test_assertions_in_compiled_functions_raise_when_they_run():
    @tf.function
    def step(x):
        tf.debugging.assert_positive(x, message="loss must be positive")
        return tf.debugging.check_numerics(x * 2, "loss")

    assert step(tf.constant(1.0)) == 2
    with pytest.raises(Exception, match="loss must be positive"):
        jax.block_until_ready(step(tf.constant(-1.0)))
    with pytest.raises(Exception, match="Expected finite numbers"):
        jax.block_until_ready(step(tf.constant(np.inf)))


def test_module_is_saved_by_its_attributes(tmp_path):
    class Net(tf.Module):
        def __init__(self, value):
            super().__init__()
            self.w = tf.Variable([value])
            self.layers = [{"b": tf.Variable(value)}]
            self.rate = 0.5

    saved, other = Net(1.0), Net(2.0)
    path = tf.train.Checkpoint(net=saved).save(str(tmp_path / "c"))
    tf.train.Checkpoint(net=other).restore(path).assert_consumed()
    assert [float(tf.reduce_sum(v)) for v in other.variables] == [1.0, 1.0]


def test_average_follows_mirrored_variables(two_replicas):
    ema = tf.train.ExponentialMovingAverage(0.5)
    with two_replicas.scope():
        weight = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
        ema.apply([weight])

    @tf.function
    def step():
        def replica():
            weight.assign_add(1.0)
            ema.apply([weight])

        two_replicas.run(replica)

    step()
    step()
    assert float(ema.average(weight)) == 2.25  # 1, 1.5, 2.25


def test_tensor_array_in_a_compiled_loop():
    @tf.function
    def squares(n):
        array = tf.TensorArray(tf.float32, size=4)

        def body(i, array):
            return i + 1, array.write(i, tf.cast(i * i, tf.float32))

        _, array = tf.while_loop(lambda i, _: i < n, body, (tf.constant(0), array))
        return array.stack()

    np.testing.assert_array_equal(squares(tf.constant(3)), [0, 1, 4, 0])


def test_strings_tables_and_images_in_dataset_map():
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["cat", "dog"], [0, 1]), default_value=-1
    )

    def parse(line):
        parts = tf.strings.split(line, sep=",")
        image = tf.io.decode_png(tf.io.encode_png(np.full((4, 6, 3), 100, np.uint8)))
        image = tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), [2, 3])
        return image, table.lookup(parts[0]), tf.strings.to_number(parts[1])

    dataset = tf.data.Dataset.from_tensor_slices(["cat,1.5", "bird,2"]).map(parse).batch(2)
    images, labels, numbers = next(iter(dataset))
    assert images.shape == (2, 2, 3, 3)
    assert images.dtype == np.float32
    np.testing.assert_allclose(images, 100 / 255, rtol=1e-6)
    assert labels.tolist() == [0, -1]
    assert numbers.tolist() == [1.5, 2.0]


def test_images_on_the_host_compile_nothing():
    """Images of many sizes would be compiled one by one."""
    with jax.log_compiles(False):
        image = np.random.default_rng(0).random((7, 9, 3), np.float32)
        for function in (
            lambda x: tf.image.resize(x, [3, 4], antialias=True),
            lambda x: tf.image.adjust_hue(tf.image.adjust_saturation(x, 0.5), 0.1),
            lambda x: tf.image.central_crop(tf.image.flip_left_right(x), 0.5),
            tf.image.per_image_standardization,
            tf.image.rgb_to_grayscale,
        ):
            found = function(image)
            assert isinstance(found, np.ndarray)
            np.testing.assert_allclose(found, function(tf.constant(image)), rtol=1e-4, atol=1e-5)


def test_jpeg_files_keep_their_pixels():
    ramp = np.linspace(0, 255, 16 * 24 * 3).reshape(16, 24, 3).astype(np.uint8)
    file = tf.io.encode_jpeg(ramp, quality=100, chroma_downsampling=False)
    assert tf.io.is_jpeg(file)
    assert tf.io.extract_jpeg_shape(file).tolist() == [16, 24, 3]
    decoded = tf.io.decode_jpeg(file)
    assert np.abs(decoded.astype(int) - ramp.astype(int)).max() <= 4
    assert tf.io.decode_jpeg(file, channels=1).shape == (16, 24, 1)
    assert tf.io.decode_jpeg(file, ratio=2).shape == (8, 12, 3)
    np.testing.assert_array_equal(tf.io.decode_and_crop_jpeg(file, [2, 3, 4, 5]), decoded[2:6, 3:8])
    with pytest.raises(ValueError, match="dct_method"):
        tf.io.decode_jpeg(file, dct_method="INTEGER_FAST")


def test_gfile_reaches_what_fsspec_reaches():
    gfile = tf.io.gfile
    top = "memory://names-in-programs"
    gfile.makedirs(f"{top}/a")
    with gfile.GFile(f"{top}/a/one.txt", "w") as file:
        file.write("text")
    assert gfile.GFile(f"{top}/a/one.txt").read() == "text"
    gfile.copy(f"{top}/a/one.txt", f"{top}/a/two.txt")
    found = gfile.glob(f"{top}/a/*.txt")
    assert [gfile.GFile(path).read() for path in found] == ["text", "text"]
    assert sorted(gfile.listdir(f"{top}/a")) == ["one.txt", "two.txt"]
    assert gfile.stat(f"{top}/a/one.txt").length == 4
    with pytest.raises(tf.errors.AlreadyExistsError):
        gfile.copy(f"{top}/a/one.txt", f"{top}/a/two.txt")
    gfile.rmtree(top)
    assert not gfile.exists(f"{top}/a/one.txt")
    with pytest.raises(tf.errors.NotFoundError):
        gfile.GFile(f"{top}/a/one.txt").read()


def test_device_is_a_hint(two_replicas):
    with tf.device("/CPU:1"):
        assert tf.ones([2]).devices() == {jax.devices()[1]}
    for name in ("/GPU:0", "/job:worker/task:0", "/CPU:99", None):
        with tf.device(name):
            assert tf.reduce_sum(tf.ones([2])) == 2

    def step():
        with tf.device("/CPU:0"):
            return tf.ones([]) * 2

    assert [float(v) for v in two_replicas.experimental_local_results(two_replicas.run(step))] == [
        2,
        2,
    ]
    with pytest.raises(tf.errors.DeviceError), tf.device("/GPU:first"):
        pass


def test_compat_v1_explains():
    tf.compat.v1.enable_v2_behavior()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    tf.compat.v1.logging.set_verbosity(0)
    assert tf.compat.v1.gfile.Exists("/")
    assert tf.compat.v2 is tf
    assert importlib.import_module("stratagem.compat.v2") is tf
    assert tf.compat.as_text(b"a") == "a"
    with pytest.raises(AttributeError, match="no graphs and sessions"):
        tf.compat.v1.Session  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"Use tf\.reduce_sum; its arguments are TensorFlow 2's"
    ):
        tf.compat.v1.reduce_sum  # noqa: B018
    with pytest.raises(AttributeError, match=r"For tf.hessians use jax.hessian"):
        tf.compat.v1.hessians  # noqa: B018


def test_python_functions_need_values():
    @tf.function
    def step(x):
        return tf.numpy_function(np.sin, [x], tf.float32)

    with pytest.raises(TypeError, match="pure_callback"):
        step(tf.constant(1.0))


def test_new_modules_are_loaded_when_used():
    program = (
        "import sys, stratagem as tf; tf.reduce_sum([1.0]); "
        "print([m for m in ('PIL', 'fsspec', 'stratagem.image', 'stratagem.strings', 'stratagem.lookup', "
        "'stratagem.compat') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_bytes_keep_their_zeros():
    assert tf.constant([b"a\0", b"b"]).tolist() == [b"a\0", b"b"]
    assert tf.constant(b"a\0").numpy() == b"a\0"
    assert tf.constant([b"a\0", b"b"])[0].numpy() == b"a\0"


@pytest.mark.parametrize(
    ("op", "result", "dtype", "accepted"),
    [
        ("numpy_function", np.array([1.5]), tf.float32, False),
        ("numpy_function", np.array([1]), tf.int64, True),
        ("numpy_function", [1, 2], tf.int32, True),
        ("py_function", np.array([1.5]), tf.int32, False),
        ("py_function", np.array([1.5]), tf.float32, True),
        ("py_function", np.array([300]), tf.int8, False),
        ("py_function", np.array([100]), tf.int8, True),
    ],
)
def test_results_of_functions_on_the_host_keep_their_values(op, result, dtype, accepted):
    call = getattr(tf, op)
    if accepted:
        np.testing.assert_array_equal(call(lambda: result, [], dtype), result)
    else:
        with pytest.raises(TypeError, match=f"func of tf.{op} must return"):
            call(lambda: result, [], dtype)
