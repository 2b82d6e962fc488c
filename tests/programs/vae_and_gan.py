"""Keras models with a train_step of their own: a VAE, a GAN with two optimizers, and a test_step."""

import json

import numpy as np
import tensorflow as tf

NUM_EXAMPLES = 32
NUM_FEATURES = 6
LATENT_SIZE = 3
BATCH_SIZE = 8


def weights(seed, shape):
    return np.random.default_rng(seed).normal(0.0, shape[0] ** -0.5, shape).astype(np.float32)


def dense(seed, in_size, out_size, activation=None):
    initial = tf.keras.initializers.Constant(weights(seed, (in_size, out_size)))
    return tf.keras.layers.Dense(out_size, activation=activation, kernel_initializer=initial)


class Vae(tf.keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.encoder = dense(1, NUM_FEATURES, 8, "tanh")
        self.mean = dense(2, 8, LATENT_SIZE)
        self.log_var = dense(3, 8, LATENT_SIZE)
        self.decoder = dense(4, LATENT_SIZE, NUM_FEATURES)
        self.total_tracker = tf.keras.metrics.Mean(name="total")
        self.kl_tracker = tf.keras.metrics.Mean(name="kl")

    @property
    def metrics(self):
        return [self.total_tracker, self.kl_tracker]

    def call(self, inputs):
        data, noise = inputs
        hidden = self.encoder(data)
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        return self.decoder(mean + tf.exp(0.5 * log_var) * noise), mean, log_var

    def losses_of(self, inputs):
        decoded, mean, log_var = self(inputs)
        error = tf.reduce_mean(tf.reduce_sum(tf.square(inputs[0] - decoded), axis=1))
        kl = -0.5 * (1.0 + log_var - tf.square(mean) - tf.exp(log_var))
        kl = tf.reduce_mean(tf.reduce_sum(kl, axis=1))
        return error + kl, kl

    def train_step(self, data):
        inputs = data[0]
        with tf.GradientTape() as tape:
            total, kl = self.losses_of(inputs)
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self.total_tracker.update_state(total)
        self.kl_tracker.update_state(kl)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        total, kl = self.losses_of(data[0])
        self.total_tracker.update_state(total)
        self.kl_tracker.update_state(kl)
        return {metric.name: metric.result() for metric in self.metrics}


class Gan(tf.keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.discriminator = tf.keras.Sequential(
            [dense(5, NUM_FEATURES, 8, "tanh"), dense(6, 8, 1)]
        )
        self.generator = tf.keras.Sequential(
            [dense(7, LATENT_SIZE, 8, "tanh"), dense(8, 8, NUM_FEATURES)]
        )
        self.d_loss_tracker = tf.keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = tf.keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def call(self, inputs):
        return self.discriminator(self.generator(inputs[1]))

    def train_step(self, data):
        real, noise = data[0]
        count = tf.shape(real)[0]
        generated = self.generator(noise)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            predicted = self.discriminator(tf.concat([generated, real], axis=0))
            d_loss = self.loss_fn(labels, predicted)
        gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(gradients, self.discriminator.trainable_weights))

        with tf.GradientTape() as tape:
            predicted = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(tf.zeros((count, 1)), predicted)
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_weights))

        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


def floats(history):
    return {name: [float(value) for value in values] for name, values in history.items()}


def main():
    random = np.random.default_rng(0)
    data = random.normal(size=(NUM_EXAMPLES, NUM_FEATURES)).astype(np.float32)
    noise = random.normal(size=(NUM_EXAMPLES, LATENT_SIZE)).astype(np.float32)
    targets = np.zeros((NUM_EXAMPLES, 1), np.float32)
    fit = {"batch_size": BATCH_SIZE, "epochs": 3, "shuffle": False, "verbose": 0}

    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        vae = Vae()
        vae.compile(optimizer=tf.keras.optimizers.SGD(0.01, momentum=0.9))
        gan = Gan()
        gan.compile(
            d_optimizer=tf.keras.optimizers.SGD(0.1),
            g_optimizer=tf.keras.optimizers.SGD(0.2, momentum=0.5),
            loss_fn=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        )
    vae_history = vae.fit((data, noise), targets, **fit).history
    evaluated = vae.evaluate((data, noise), targets, batch_size=16, verbose=0, return_dict=True)
    gan_history = gan.fit((data, noise), targets, **fit).history
    return {
        **{f"vae_{name}": values for name, values in floats(vae_history).items()},
        **{f"vae_test_{name}": float(value) for name, value in evaluated.items()},
        **{f"gan_{name}": values for name, values in floats(gan_history).items()},
        "decoded": float(np.sum(np.abs(vae.decoder.get_weights()[0]))),
        "steps": [int(gan.d_optimizer.iterations), int(gan.g_optimizer.iterations)],
    }


if __name__ == "__main__":
    print(json.dumps(main()))
