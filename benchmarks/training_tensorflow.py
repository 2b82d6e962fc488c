"""A network of ``training.py`` trained with TensorFlow's strategies; started by it, in its own interpreter.

Prints examples per second as JSON.
"""

from __future__ import annotations

import json
import sys

import tensorflow as tf
import training_models
from training_models import (
    CHANNELS,
    CONTEXT,
    DIMS,
    GROUPS,
    HEADS,
    MOMENTS,
    PATCH,
    PATCHES,
    SIDE,
    UNITS,
    WORDS,
)
from training_rate import examples_per_second


def digits(x, parameters):
    for place in range(0, len(parameters) - 2, 2):
        x = tf.nn.relu(x @ parameters[place] + parameters[place + 1])
    return x @ parameters[-2] + parameters[-1]


def resnet(x, parameters):
    def normalized(x, scale, offset):
        _, height, width, channels = x.shape
        grouped = tf.reshape(x, [-1, height, width, GROUPS, channels // GROUPS])
        mean, variance = tf.nn.moments(grouped, [1, 2, 4], keepdims=True)
        grouped = (grouped - mean) * tf.math.rsqrt(variance + 1e-5)
        return tf.reshape(grouped, [-1, height, width, channels]) * scale + offset

    x = tf.nn.conv2d(x, parameters[0], 1, "SAME")
    for place, stride in zip(range(1, 1 + 7 * len(CHANNELS), 7), (1, 2, 2), strict=True):
        scale, offset, first, scale2, offset2, second, shortcut = parameters[place : place + 7]
        y = tf.nn.conv2d(tf.nn.relu(normalized(x, scale, offset)), first, stride, "SAME")
        y = tf.nn.conv2d(tf.nn.relu(normalized(y, scale2, offset2)), second, 1, "SAME")
        x = tf.nn.conv2d(x, shortcut, stride, "SAME") + y
    return tf.reduce_mean(x, [1, 2]) @ parameters[-2] + parameters[-1]


def transformer(words, parameters):
    mask = tf.linalg.band_part(tf.ones([CONTEXT, CONTEXT]), -1, 0)
    x = attention(tf.gather(parameters[0], words) + parameters[1], parameters[2:-1], CONTEXT, mask)
    return tf.reshape(tf.reshape(x, [-1, DIMS]) @ parameters[-1], [-1, CONTEXT, WORDS])


def vit(images, parameters):
    patches = tf.reshape(images, [-1, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH * 3])
    patches = tf.reshape(tf.transpose(patches, [0, 1, 3, 2, 4]), [-1, PATCHES, PATCH * PATCH * 3])
    x = tf.tensordot(patches, parameters[0], 1) + parameters[1]
    return tf.reduce_mean(attention(x, parameters[2:-1], PATCHES), 1) @ parameters[-1]


def attention(x, parameters, length, mask=None):
    def normalized(x, scale):
        return x * tf.math.rsqrt(tf.reduce_mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale

    for place in range(0, len(parameters) - 1, 6):
        before, joint, attended, before_hidden, hidden, out = parameters[place : place + 6]
        heads = tf.reshape(
            tf.tensordot(normalized(x, before), joint, 1), [-1, length, 3, HEADS, DIMS // HEADS]
        )
        queries, keys, values = tf.unstack(heads, axis=2)
        weights = tf.einsum("bqhd,bkhd->bhqk", queries, keys) * (DIMS // HEADS) ** -0.5
        weights = tf.nn.softmax(weights if mask is None else tf.where(mask > 0, weights, -1e9))
        y = tf.reshape(tf.einsum("bhqk,bkhd->bqhd", weights, values), [-1, length, DIMS])
        x = x + tf.tensordot(y, attended, 1)
        inner = tf.nn.gelu(tf.tensordot(normalized(x, before_hidden), hidden, 1), approximate=True)
        x = x + tf.tensordot(inner, out, 1)
    return normalized(x, parameters[-1])


def gru(series, parameters):
    kernel, recurrent, offset, recurrent_offset, out, out_offset = parameters
    given = tf.tensordot(series, kernel, 1) + offset
    state = tf.zeros([tf.shape(series)[0], UNITS])
    for moment in range(MOMENTS):
        reset, update, new = tf.split(given[:, moment], 3, -1)
        reset2, update2, new2 = tf.split(state @ recurrent + recurrent_offset, 3, -1)
        reset, update = tf.sigmoid(reset + reset2), tf.sigmoid(update + update2)
        new = tf.tanh(new + reset * new2)
        state = new + update * (state - new)
    return state @ out + out_offset


def recommender(pairs, parameters):
    users, items, kernel, offset, out, out_offset = parameters
    x = tf.concat([tf.gather(users, pairs[:, 0]), tf.gather(items, pairs[:, 1])], -1)
    return tf.nn.relu(x @ kernel + offset) @ out + out_offset


NETWORKS = {
    "digits": digits,
    "resnet": resnet,
    "transformer": transformer,
    "vit": vit,
    "gru": gru,
    "recommender": recommender,
}


def main() -> None:
    name, num_devices, num_processes, seconds = json.loads(sys.argv[1])
    if num_processes > 1:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        device = tf.config.list_physical_devices("CPU")[0]
        configuration = [tf.config.LogicalDeviceConfiguration()] * num_devices
        tf.config.set_logical_device_configuration(device, configuration)
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(num_devices)],
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
    task = training_models.TASKS[name]
    dataset = tf.data.Dataset.from_tensor_slices(training_models.make_data(name))
    dataset = dataset.shuffle(task.examples, seed=2).repeat()
    dataset = dataset.batch(task.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(options)
    with strategy.scope():
        parameters = [tf.Variable(p) for p in training_models.make_parameters(name)]
        optimizer = tf.keras.optimizers.Adam(training_models.LEARNING_RATE)
        optimizer.build(parameters)

    def replica_step(inputs, labels):
        with tf.GradientTape() as tape:
            scores = NETWORKS[name](inputs, parameters)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            each = tf.reduce_mean(tf.reshape(each, [tf.shape(each)[0], -1]), axis=1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=task.batch)
        optimizer.apply_gradients(zip(tape.gradient(loss, parameters), parameters, strict=True))
        return loss

    @tf.function
    def train_step(iterator):
        return strategy.reduce("SUM", strategy.run(replica_step, args=next(iterator)), axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    last = []

    def step():
        last[:] = [train_step(iterator)]

    def agreed(steps):
        if num_processes == 1:
            return steps
        everyone = strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(
                "MEAN", tf.constant(float(steps))
            )
        )
        return int(everyone)

    rate = examples_per_second(step, lambda: float(last[0]), task.batch, seconds, agreed)
    print(json.dumps(rate), flush=True)


if __name__ == "__main__":
    main()
