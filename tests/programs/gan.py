"""A GAN with two optimizers, a gradient penalty, a path length penalty and an averaged generator."""

import json

import numpy as np
import tensorflow as tf

LATENT_SIZE = 6
IMAGE_SHAPE = (4, 4, 1)
BATCH_SIZE = 8
NUM_STEPS = 12
PENALTY_WEIGHT = 10.0
PATH_WEIGHT = 2.0
PATH_DECAY = 0.9
PENALTY_INTERVAL = 4


class Dense(tf.Module):
    def __init__(self, in_size, out_size, seed, activation=None, name=None):
        super().__init__(name=name)
        initial = np.random.default_rng(seed).normal(0.0, in_size**-0.5, (in_size, out_size))
        self.kernel = tf.Variable(tf.cast(initial, tf.float32), name="kernel")
        self.bias = tf.Variable(tf.zeros(out_size), name="bias")
        self.activation = activation

    def __call__(self, x):
        y = tf.linalg.matmul(x, self.kernel) + self.bias
        return y if self.activation is None else self.activation(y)


class Generator(tf.Module):
    def __init__(self, seed, name="generator"):
        super().__init__(name=name)
        self.mapping = Dense(LATENT_SIZE, 16, seed, tf.nn.leaky_relu, name="mapping")
        self.synthesis = Dense(16, int(np.prod(IMAGE_SHAPE)), seed + 1, tf.nn.tanh)

    def style(self, latents):
        # Latents of length one, as PGGAN has them.
        latents *= tf.math.rsqrt(tf.reduce_mean(tf.square(latents), axis=1, keepdims=True) + 1e-8)
        return self.mapping(latents)

    def paint(self, styles):
        return tf.reshape(self.synthesis(styles), (-1,) + IMAGE_SHAPE)

    def __call__(self, latents):
        return self.paint(self.style(latents))


class Discriminator(tf.Module):
    def __init__(self, seed, name="discriminator"):
        super().__init__(name=name)
        self.layers = [
            Dense(int(np.prod(IMAGE_SHAPE)), 16, seed, tf.nn.softplus),
            Dense(16, 1, seed + 1),
        ]

    def __call__(self, images):
        x = tf.reshape(images, [tf.shape(images)[0], -1])
        for layer in self.layers:
            x = layer(x)
        return tf.squeeze(x, axis=-1)


class Gan:
    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.generator = Generator(seed=10)
            self.averaged = Generator(seed=10, name="averaged")
            self.discriminator = Discriminator(seed=20)
            self.generator_optimizer = tf.keras.optimizers.Adam(0.01, beta_1=0.0, beta_2=0.99)
            self.discriminator_optimizer = tf.keras.optimizers.Adam(0.02, beta_1=0.0, beta_2=0.99)
            self.generator_optimizer.build(self.generator.trainable_variables)
            self.discriminator_optimizer.build(self.discriminator.trainable_variables)
            self.mean_path_length = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            )

    def gradient_penalty(self, real, fake, mix):
        """Returns how far the slope of the discriminator between two images is from one."""
        between = real + mix * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.discriminator(between)
        gradients = tape.gradient(scores, [between])[0]
        norms = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=[1, 2, 3]) + 1e-12)
        return tf.square(norms - 1.0)

    def path_length(self, latents, noise):
        styles = self.generator.style(latents)
        with tf.GradientTape() as tape:
            tape.watch(styles)
            painted = tf.reduce_sum(self.generator.paint(styles) * noise)
        gradients = tape.gradient(painted, styles)
        return tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=1) + 1e-12)

    def discriminator_step(self, real, latents, mix):
        with tf.GradientTape() as tape:
            fake = self.generator(latents)
            real_scores = self.discriminator(real)
            fake_scores = self.discriminator(fake)
            penalty = self.gradient_penalty(real, fake, mix)
            loss = tf.nn.softplus(fake_scores) + tf.nn.softplus(-real_scores)
            loss += PENALTY_WEIGHT * penalty
            loss = tf.nn.compute_average_loss(loss, global_batch_size=BATCH_SIZE)
        variables = self.discriminator.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.discriminator_optimizer.apply_gradients(zip(gradients, variables))
        return loss

    def generator_step(self, latents, noise, with_penalty):
        with tf.GradientTape() as tape:
            loss = tf.nn.softplus(-self.discriminator(self.generator(latents)))
            if with_penalty:
                lengths = self.path_length(latents, noise)
                mean = self.mean_path_length
                mean.assign(PATH_DECAY * mean + (1.0 - PATH_DECAY) * tf.reduce_mean(lengths))
                loss += PATH_WEIGHT * tf.math.squared_difference(lengths, mean)
            loss = tf.nn.compute_average_loss(loss, global_batch_size=BATCH_SIZE)
        variables = self.generator.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.generator_optimizer.apply_gradients(zip(gradients, variables))
        return loss

    def replica_step(self, batch, with_penalty):
        discriminator_loss = self.discriminator_step(batch["real"], batch["latents"], batch["mix"])
        generator_loss = self.generator_step(batch["latents"], batch["noise"], with_penalty)
        return discriminator_loss, generator_loss

    @tf.function
    def step(self, batch, with_penalty):
        losses = self.strategy.run(self.replica_step, args=(batch, with_penalty))
        return [self.strategy.reduce(tf.distribute.ReduceOp.SUM, x, axis=None) for x in losses]

    def update_average(self, decay=0.8):
        pairs = zip(self.averaged.variables, self.generator.variables)
        for average, variable in pairs:
            average.assign(decay * average + (1.0 - decay) * variable)


def make_dataset():
    """Returns what a GAN would draw, drawn before, so that the losses can be compared."""
    rng = np.random.default_rng(0)
    size = NUM_STEPS * BATCH_SIZE
    real = np.tanh(rng.normal(0.5, 0.2, (size, *IMAGE_SHAPE)))
    arrays = {
        "real": real.astype(np.float32),
        "latents": rng.normal(size=(size, LATENT_SIZE)).astype(np.float32),
        "mix": rng.uniform(size=(size, 1, 1, 1)).astype(np.float32),
        "noise": rng.normal(size=(size, *IMAGE_SHAPE)).astype(np.float32),
    }
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH_SIZE, drop_remainder=True)


def main():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    gan = Gan(strategy)
    discriminator_losses, generator_losses = [], []
    for number, batch in enumerate(strategy.experimental_distribute_dataset(make_dataset())):
        with_penalty = number % PENALTY_INTERVAL == 0
        discriminator_loss, generator_loss = gan.step(batch, with_penalty)
        gan.update_average()
        discriminator_losses.append(float(discriminator_loss))
        generator_losses.append(float(generator_loss))
    images = gan.averaged(tf.ones([2, LATENT_SIZE]))
    return {
        "discriminator": discriminator_losses,
        "generator": generator_losses,
        "path_length": float(gan.mean_path_length.read_value()),
        "image": images[0, 0, :, 0].numpy().tolist(),
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(main()))
