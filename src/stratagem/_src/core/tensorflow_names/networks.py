"""``tf.nn`` and ``tf.image``: what of them is not here."""

__all__ = ["NETWORKS"]

NETWORKS: dict[str, str] = {
    "image.convert_image_dtype": "x.astype(sg.float32) / 255, of bytes",
    "image.flip_left_right": "jax.numpy.flip(x, axis=-2)",
    "image.flip_up_down": "jax.numpy.flip(x, axis=-3)",
    "image.random_flip_left_right": "jax.numpy.where(jax.random.bernoulli(key), jax.numpy.flip(x, axis=-2), x)",
    "image.resize": "jax.image.resize(x, shape, 'bilinear', antialias=False), where shape is that of the result",
    "image.rot90": "jax.numpy.rot90(x, axes=(-3, -2))",
    "image.transpose": "jax.numpy.swapaxes(x, -3, -2)",
    "nn.ctc_loss": "optax.ctc_loss",
}
