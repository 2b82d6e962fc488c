"""Half precision with dynamic loss scaling: an explicit all-reduce, and no step on overflow."""

import json

import numpy as np
import tensorflow as tf

NUM_FEATURES = 12
HIDDEN = 16
GLOBAL_BATCH_SIZE = 16
NUM_STEPS = 16
CLIP_NORM = 1.0


class DynamicLossScale(tf.Module):
    """Doubles after some good steps, and halves when gradients are not finite."""

    def __init__(self, initial=2.0**15, growth_steps=4, name=None):
        super().__init__(name=name)
        self.growth_steps = growth_steps
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.scale = tf.Variable(
            initial, dtype=tf.float32, trainable=False, aggregation=first, name="scale"
        )
        self.good_steps = tf.Variable(
            0, dtype=tf.int64, trainable=False, aggregation=first, name="good_steps"
        )

    def scale_loss(self, loss):
        return loss * tf.cast(self.scale, loss.dtype)

    def unscale(self, gradients):
        reciprocal = 1.0 / self.scale
        return [None if g is None else tf.cast(g, tf.float32) * reciprocal for g in gradients]

    def update(self, finite):
        grows = tf.logical_and(finite, self.good_steps + 1 >= self.growth_steps)
        factor = tf.where(grows, 2.0, tf.where(finite, 1.0, 0.5))
        zero = tf.zeros([], tf.int64)
        counted = tf.where(tf.logical_or(grows, tf.logical_not(finite)), zero, self.good_steps + 1)
        self.scale.assign(tf.maximum(1.0, self.scale * factor))
        self.good_steps.assign(counted)


class Momentum:
    """Gradient descent that takes gradients of all replicas, already summed."""

    def __init__(self, learning_rate, momentum):
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.slots = []

    def build(self, variables):
        self.slots = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]

    def apply(self, gradients, variables):
        """Updates every copy of each variable, in the context of all replicas."""
        context = tf.distribute.get_replica_context()
        context.merge_call(self._apply, args=(list(gradients), list(variables)))

    def _apply(self, strategy, gradients, variables):
        def update_slot(slot, gradient):
            return slot.assign(self.momentum * slot + gradient)

        def update_variable(variable, slot):
            return variable.assign_sub(self.learning_rate * slot)

        reduced = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.MEAN, list(zip(gradients, variables))
        )
        for slot, variable, gradient in zip(self.slots, variables, reduced):
            strategy.extended.update(slot, update_slot, args=(gradient,))
            strategy.extended.update(variable, update_variable, args=(slot,))


class Network(tf.Module):
    def __init__(self, seed, name=None):
        super().__init__(name=name)
        rng = np.random.default_rng(seed)
        self.hidden = tf.Variable(
            rng.normal(0.0, 0.3, (NUM_FEATURES, HIDDEN)), dtype=tf.float32, name="hidden"
        )
        self.output = tf.Variable(
            rng.normal(0.0, 0.3, (HIDDEN, 1)), dtype=tf.float32, name="output"
        )
        self.bias = tf.Variable(tf.zeros([1]), name="bias")

    def __call__(self, x, dtype):
        h = tf.nn.relu(tf.matmul(tf.cast(x, dtype), tf.cast(self.hidden, dtype)))
        y = tf.matmul(h, tf.cast(self.output, dtype))
        return tf.squeeze(tf.cast(y, tf.float32), axis=1) + self.bias


def all_finite(gradients):
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])


def main():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        network = Network(seed=1)
        optimizer = Momentum(learning_rate=0.1, momentum=0.8)
        optimizer.build(network.trainable_variables)
        loss_scale = DynamicLossScale()

    def replica_step(features, targets):
        context = tf.distribute.get_replica_context()
        variables = network.trainable_variables
        with tf.GradientTape() as tape:
            predictions = network(features, tf.float16)
            errors = tf.math.squared_difference(predictions, targets)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH_SIZE)
            scaled_loss = loss_scale.scale_loss(loss)
        scaled = tape.gradient(scaled_loss, variables)
        # Half as many bytes; the scale keeps small numbers.
        halves = [tf.cast(g, tf.float16) for g in scaled]
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, halves)
        gradients = loss_scale.unscale(summed)
        finite = all_finite(gradients)
        gradients = [tf.where(finite, g, tf.zeros_like(g)) for g in gradients]
        gradients, norm = tf.clip_by_global_norm(gradients, CLIP_NORM)
        optimizer.apply(gradients, variables)
        loss_scale.update(finite)
        return {"loss": loss, "norm": norm, "finite": tf.cast(finite, tf.float32)}

    @tf.function
    def train_step(iterator):
        results = strategy.run(replica_step, args=next(iterator))
        return {
            "loss": strategy.reduce("SUM", results["loss"], axis=None),
            "norm": strategy.reduce("MEAN", results["norm"], axis=None),
            "finite": strategy.reduce("MEAN", results["finite"], axis=None),
        }

    rng = np.random.default_rng(2)
    features = rng.normal(size=(64, NUM_FEATURES)).astype(np.float32)
    targets = 4.0 * np.sin(features).sum(axis=1).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((features, targets)).repeat()
    dataset = dataset.batch(GLOBAL_BATCH_SIZE, drop_remainder=True)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    history = {"loss": [], "norm": [], "finite": [], "scale": []}
    for _ in range(NUM_STEPS):
        for key, value in train_step(iterator).items():
            history[key].append(value.numpy().item())
        history["scale"].append(loss_scale.scale.numpy().item())
    return history


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
