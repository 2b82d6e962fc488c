"""A detector with one box per cell, trained on TFRecords of PNG images and boxes."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

IMAGE_SIZE = 16
GRID = 4
MAX_BOXES = 4
NUM_CLASSES = 3
CLASS_NAMES = ["circle", "square", "star"]
NUM_IMAGES = 16
EPOCHS = 4

FEATURE_MAP = {
    "image/width": tf.io.FixedLenFeature([], tf.int64),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/object/bbox/xmin": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/ymin": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/xmax": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/ymax": tf.io.VarLenFeature(tf.float32),
    "image/object/class/text": tf.io.VarLenFeature(tf.string),
}


def int64_feature(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def bytes_feature(values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def float_feature(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def make_example(rng, number):
    """Returns an image with bright boxes on a dark ground, of which each channel is a class."""
    height, width = int(rng.integers(20, 28)), int(rng.integers(20, 28))
    pixels = rng.integers(0, 60, size=(height, width, 3)).astype(np.uint8)
    boxes, texts = [], []
    for _ in range(rng.integers(1, MAX_BOXES)):
        x, y = rng.uniform(0.0, 0.6, size=2)
        w, h = rng.uniform(0.2, 0.4, size=2)
        label = int(rng.integers(NUM_CLASSES))
        rows = slice(int(y * height), int((y + h) * height))
        pixels[rows, int(x * width) : int((x + w) * width), label] += 180
        boxes.append((x, y, x + w, y + h))
        texts.append(CLASS_NAMES[label].encode())
    xmin, ymin, xmax, ymax = (list(side) for side in zip(*boxes))
    feature = {
        "image/width": int64_feature(width),
        "image/height": int64_feature(height),
        "image/filename": bytes_feature([b"image-%d.png" % number]),
        "image/encoded": bytes_feature([tf.io.encode_png(pixels).numpy()]),
        "image/object/bbox/xmin": float_feature(xmin),
        "image/object/bbox/ymin": float_feature(ymin),
        "image/object/bbox/xmax": float_feature(xmax),
        "image/object/bbox/ymax": float_feature(ymax),
        "image/object/class/text": bytes_feature(texts),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature))


def write_records(directory):
    rng = np.random.default_rng(21)
    for shard in range(2):
        path = os.path.join(directory, "train-%05d-of-00002.tfrecord" % shard)
        with tf.io.TFRecordWriter(path) as writer:
            for number in range(NUM_IMAGES // 2):
                writer.write(make_example(rng, number).SerializeToString())


def parse_record(record, class_table):
    x = tf.io.parse_single_example(record, FEATURE_MAP)
    image = tf.image.decode_png(x["image/encoded"], channels=3)
    image = tf.image.resize(image, (IMAGE_SIZE, IMAGE_SIZE)) / 255.0
    texts = tf.sparse.to_dense(x["image/object/class/text"], default_value="")
    labels = tf.cast(class_table.lookup(texts), tf.float32)
    boxes = tf.stack(
        [
            tf.sparse.to_dense(x["image/object/bbox/xmin"]),
            tf.sparse.to_dense(x["image/object/bbox/ymin"]),
            tf.sparse.to_dense(x["image/object/bbox/xmax"]),
            tf.sparse.to_dense(x["image/object/bbox/ymax"]),
            labels,
        ],
        axis=1,
    )
    paddings = [[0, MAX_BOXES - tf.shape(boxes)[0]], [0, 0]]
    return image, tf.pad(boxes, paddings)


def assign_to_cells(image, boxes):
    """Writes each box into the cell of its center: four sides, one for "here", the class."""
    is_box = boxes[:, 2] > boxes[:, 0]
    centers = (boxes[:, 0:2] + boxes[:, 2:4]) / 2
    cells = tf.cast(centers * GRID, tf.int32)
    cells = tf.where(is_box[:, tf.newaxis], cells, 0)
    here = tf.cast(is_box, tf.float32)
    one_hot = tf.one_hot(tf.cast(boxes[:, 4], tf.int32), NUM_CLASSES)
    values = tf.concat([boxes[:, 0:4], here[:, tf.newaxis], one_hot], axis=-1)
    values *= here[:, tf.newaxis]
    indices = tf.stack([cells[:, 1], cells[:, 0]], axis=-1)
    target = tf.zeros([GRID, GRID, 5 + NUM_CLASSES])
    return image, tf.tensor_scatter_nd_max(target, indices, values)


def load_dataset(pattern, batch_size, training):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            keys=tf.constant(CLASS_NAMES), values=tf.range(NUM_CLASSES, dtype=tf.int64)
        ),
        default_value=-1,
    )
    files = tf.data.Dataset.list_files(pattern, shuffle=training)
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=2, block_length=2)
    dataset = dataset.map(lambda record: parse_record(record, table), tf.data.AUTOTUNE)
    dataset = dataset.cache()
    if training:
        dataset = dataset.shuffle(buffer_size=NUM_IMAGES)
    dataset = dataset.map(assign_to_cells).batch(batch_size, drop_remainder=training)
    return dataset.prefetch(tf.data.AUTOTUNE)


class Detector(tf.Module):
    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(22)
        shapes = [(3, 3, 3, 8), (3, 3, 8, 12), (1, 1, 12, 5 + NUM_CLASSES)]
        self.kernels = [
            tf.Variable(tf.constant(rng.normal(0.0, 0.3, shape), tf.float32)) for shape in shapes
        ]

    def __call__(self, x):
        for kernel in self.kernels[:-1]:
            x = tf.nn.leaky_relu(tf.nn.conv2d(x, kernel, strides=2, padding="SAME"), alpha=0.1)
        return tf.nn.conv2d(x, self.kernels[-1], strides=1, padding="VALID")


def detection_losses(outputs, targets):
    here = targets[..., 4]
    box_loss = tf.reduce_sum(tf.square(tf.sigmoid(outputs[..., :4]) - targets[..., :4]), axis=-1)
    here_loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=here, logits=outputs[..., 4])
    class_loss = tf.nn.softmax_cross_entropy_with_logits(targets[..., 5:], outputs[..., 5:])
    cells = here_loss + here * (5.0 * box_loss + class_loss)
    return tf.reduce_sum(cells, axis=[1, 2])


def main():
    directory = tempfile.mkdtemp()
    write_records(directory)
    pattern = os.path.join(directory, "train-*.tfrecord")
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    # One batch of all images: its loss does not depend on their order.
    train_dataset = strategy.experimental_distribute_dataset(
        load_dataset(pattern, NUM_IMAGES, True)
    )
    test_dataset = strategy.experimental_distribute_dataset(load_dataset(pattern, 6, False))
    with strategy.scope():
        model = Detector()
        optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.01)
        optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(images, targets):
        def replica_step(images, targets):
            with tf.GradientTape() as tape:
                losses = detection_losses(model(images), targets)
                loss = tf.reduce_sum(losses) / NUM_IMAGES
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        losses = strategy.run(replica_step, args=(images, targets))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def test_step(images, targets):
        losses = strategy.run(lambda x, y: detection_losses(model(x), y), args=(images, targets))
        return strategy.gather(losses, axis=0)

    train_losses = []
    for _ in range(EPOCHS):
        for images, targets in train_dataset:
            train_losses.append(float(train_step(images, targets)))
    per_image = []
    for images, targets in test_dataset:
        per_image.extend(test_step(images, targets).numpy().tolist())
    return {"train_loss": train_losses, "image_losses": per_image}


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
