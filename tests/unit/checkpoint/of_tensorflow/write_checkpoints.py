"""Writes checkpoints with TensorFlow, for tests that read them without it.

    python write_checkpoints.py DIRECTORY [--size N]

Needs tensorflow-cpu and tf_keras (Keras 2). What TensorFlow reads from them goes to ``expected.json``.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
import tf_keras

EXTRA = {}  # what is not in a checkpoint: results of the objects that were saved


def numbers(*shape, start=0.0):
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32) / 8 + start).reshape(shape)


def described(array):
    array = np.asarray(array, object) if isinstance(array, bytes) else np.asarray(array)
    if array.dtype == object:
        values = [item.decode("latin-1") for item in array.ravel()]
        return {"dtype": "string", "shape": array.shape, "values": values}
    flat = array.ravel()
    if array.dtype.kind == "c":
        values = [[float(x.real), float(x.imag)] for x in flat]
    elif array.dtype.kind in "iub":
        values = [int(x) for x in flat]
    else:
        values = [float(x) for x in flat]
    return {"dtype": array.dtype.name, "shape": array.shape, "values": values}


def variables(directory, size):
    """Variables, lists and dictionaries of them, saved twice by a manager."""
    step = tf.Variable(7, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(
        w=tf.Variable(numbers(3, size)),
        step=step,
        blocks=[tf.Variable(numbers(2)), {"scale": tf.Variable(0.5), "shift": tf.Variable(-1.5)}],
        pair=(tf.Variable(numbers(2, start=1.0)), tf.Variable([True, False])),
    )
    manager = tf.train.CheckpointManager(checkpoint, str(directory), max_to_keep=2)
    manager.save()
    step.assign_add(1)
    manager.save()


def dtypes(directory, size):
    """A tensor of each type, in the style of TensorFlow 1: by names, without objects."""
    tensors = {}
    for dtype in (
        *("float16", "float32", "float64", "bfloat16", "float8_e5m2", "float8_e4m3fn"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("complex64", "complex128", "int4", "uint4"),
    ):
        array = np.arange(4).astype(tf.dtypes.as_dtype(dtype).as_numpy_dtype)
        tensors[f"types/{dtype}"] = tf.constant(array)
    tensors["types/bool"] = tf.constant([[True], [False]])
    tensors["types/string"] = tf.constant([["a", ""], ["\u00fc\0", "x" * 200]])
    tensors["types/scalar_string"] = tf.constant("one")
    tensors["types/scalar"] = tf.constant(2.5)
    tensors["types/empty"] = tf.zeros([0, 3])
    tensors["types/complex64"] = tf.constant(np.array([1 + 2j, -3j], np.complex64))
    tf.raw_ops.SaveV2(
        prefix=str(directory / "model"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


class Dense(tf.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.w = tf.Variable(numbers(inputs, outputs))
        self.b = tf.Variable(numbers(outputs, start=5.0))


class Net(tf.Module):
    def __init__(self, size):
        super().__init__()
        self.first = Dense(3, size)
        self.rest = [Dense(size, size), Dense(size, 2)]
        self.named = {"gain": tf.Variable(3.0)}


def module(directory, size):
    tf.train.Checkpoint(net=Net(size)).write(str(directory / "ckpt"))


def saved_model(directory, size):
    tf.saved_model.save(Net(size), str(directory))
    keep_variables(directory)


def keep_variables(directory):
    """Removes the functions of a SavedModel, which are larger than its small weights."""
    shutil.rmtree(directory / "assets", ignore_errors=True)
    for file in directory.glob("*.pb"):
        file.unlink()


def data(size):
    return numbers(8, 3) % 1.0, numbers(8, 2) % 0.7


def build(library, size, optimizer):
    layers = library.layers
    model = library.Sequential(
        [
            layers.Input((3,)),
            layers.Dense(size, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.0),
            layers.Dense(2),
        ]
    )
    model.set_weights([numbers(*w.shape, start=0.1) / 4 for w in model.weights])
    model.compile(optimizer, "mse")
    return model


def train(model, size, name, save):
    """Trains, saves, and notes the results after the save and after one more step."""
    x, y = data(size)
    for _ in range(3):
        model.train_on_batch(x, y)
    save(model)
    predicted = np.asarray(model(x, training=False))
    model.train_on_batch(x, y)
    after = [np.asarray(w) for w in model.get_weights()]
    EXTRA[name] = {
        "predicted": described(predicted),
        "after": [described(w) for w in after],
    }


def keras3(directory, size):
    def save(model):
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.save(str(directory / "ckpt"))

    train(build(keras, size, keras.optimizers.Adam(0.05)), size, "keras3", save)


def keras3_functional(directory, size):
    inputs = keras.Input((4, 3))
    h = keras.layers.LSTM(size, name="recurrent")(inputs)
    h = keras.layers.Dropout(0.5)(h)  # has a seed, which is not saved
    left, right = keras.layers.Dense(2, name="left")(h), keras.layers.Dense(2, name="right")(h)
    model = keras.Model(inputs, keras.layers.Add()([left, right]))
    model.set_weights([numbers(*w.shape, start=k) / 9 for k, w in enumerate(model.weights)])
    tf.train.Checkpoint(model=model).write(str(directory / "ckpt"))
    predicted = model(numbers(2, 4, 3) % 1.0)
    EXTRA["keras3_functional"] = {"predicted": described(np.asarray(predicted))}


def keras3_export(directory, size):
    def save(model):
        model.export(str(directory), verbose=False)
        keep_variables(directory)

    train(build(keras, size, "sgd"), size, "keras3_export", save)


def keras2_saved_model(directory, size):
    def save(model):
        model.save(str(directory))
        keep_variables(directory)

    model = build(tf_keras, size, tf_keras.optimizers.Adam(0.05))
    train(model, size, "keras2_saved_model", save)


def keras2(directory, size):
    def save(model):
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.save(str(directory / "ckpt"))

    train(build(tf_keras, size, tf_keras.optimizers.Adam(0.05)), size, "keras2", save)


def keras2_legacy(directory, size):
    """A legacy optimizer has slot variables; ``save_weights`` has the model as the root."""
    model = build(tf_keras, size, tf_keras.optimizers.legacy.Adam(0.05))
    train(model, size, "keras2_legacy", lambda m: m.save_weights(str(directory / "weights")))


def keras2_h5(directory, size):
    model = build(tf_keras, size, "sgd")
    train(model, size, "keras2_h5", lambda m: m.save_weights(str(directory / "weights.h5")))


def partitioned(directory, size):
    """Variables with a partitioner, of TensorFlow 1, and slices in two dimensions."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("net", partitioner=v1.fixed_size_partitioner(3)):
            v1.get_variable("embedding", initializer=tf.constant(numbers(7, size)))
        v1.get_variable("bias", initializer=tf.constant(numbers(size)))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(directory / "model.ckpt"), write_meta_graph=False)
    (directory / "checkpoint").unlink()  # it has the absolute path
    whole = numbers(4, 70)
    boxes = {"4 70 0,4:0,64": whole[:, :64], "4 70 0,1:64,6": whole[:1, 64:]}
    boxes["4 70 1,3:64,6"] = whole[1:, 64:]
    tf.raw_ops.SaveV2(
        prefix=str(directory / "boxes"),
        tensor_names=["whole"] * len(boxes),
        shape_and_slices=list(boxes),
        tensors=list(boxes.values()),
    )


def sharded(directory, size):
    """Several data files, with a variable that is cut by their maximum size."""
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=64 * size)
    checkpoint = tf.train.Checkpoint(
        a=tf.Variable(numbers(20, size)), b=tf.Variable(numbers(3)), names=tf.Variable(["x", "y"])
    )
    checkpoint.write(
        str(directory / "ckpt"), tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    )


ALL = (variables, dtypes, module, saved_model, partitioned, sharded, keras3, keras3_functional)
ALL = (*ALL, keras3_export, keras2, keras2_legacy, keras2_saved_model, keras2_h5)


def read_all(root):
    """Returns what TensorFlow reads from all checkpoints below a directory."""
    found = {}
    for index in sorted(root.rglob("*.index")):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        found[str(index.with_suffix("").relative_to(root))] = {
            name: described(reader.get_tensor(name))
            for name in sorted(reader.get_variable_to_shape_map())
            if name != "_CHECKPOINTABLE_OBJECT_GRAPH"
        }
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", type=int, default=2)
    arguments = parser.parse_args()
    for write in ALL:
        directory = arguments.directory / write.__name__
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        write(directory, arguments.size)
    expected = {"tensors": read_all(arguments.directory), "results": EXTRA}
    (arguments.directory / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
