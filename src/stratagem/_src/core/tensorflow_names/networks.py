"""``tf.nn`` and ``tf.image``: what of them is not here."""

__all__ = ["NETWORKS"]

NETWORKS: dict[str, str] = {
    "image.extract_glimpse": "sg.image.crop_and_resize, or sg.image.extract_patches",
    "image.non_max_suppression_padded": "sg.image.combined_non_max_suppression, which gives a fixed number of boxes",
    "image.ssim_multiscale": "sg.image.ssim of images that jax.image.resize made smaller",
    "nn.ctc_loss": "optax.ctc_loss",
}
