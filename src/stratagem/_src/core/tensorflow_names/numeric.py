"""Replacements for numeric functions of TensorFlow: arrays, ``tf.math``, ``tf.random``, ``tf.nn``, ``tf.image``."""

__all__ = ["NUMERIC"]

NUMERIC: dict[str, str] = {
    # arrays
    "sparse.from_dense": "jax.experimental.sparse.BCOO.fromdense(x)",
    "sparse.sparse_dense_matmul": "a @ b of a jax.experimental.sparse.BCOO",
    "to_float": "x.astype(sg.float32)",
    # tf.math, tf.linalg and tf.signal
    "ceil": "jax.numpy.ceil",
    "linalg.lu": "jax.lax.linalg.lu(x), whose first and third results are TensorFlow's",
    "linalg.sqrtm": "jax.scipy.linalg.sqrtm(x).real, or as it is for complex numbers",
    "log": "jax.numpy.log",
    "mod": "jax.numpy.mod",
    "rsqrt": "jax.lax.rsqrt",
    "signal.dct": "jax.scipy.fft.dct",
    "signal.fft": "jax.numpy.fft.fft",
    "signal.fft2d": "jax.numpy.fft.fft2",
    "signal.fft3d": "jax.numpy.fft.fftn(x, axes=(-3, -2, -1))",
    "signal.fftshift": "jax.numpy.fft.fftshift",
    "signal.hamming_window": "jax.numpy.hamming(n + 1)[:-1] for an even n, jax.numpy.hamming(n) for an odd n",
    "signal.hann_window": "jax.numpy.hanning(n + 1)[:-1] for an even n, jax.numpy.hanning(n) for an odd n",
    "signal.idct": "jax.scipy.fft.idct(x) * 2 * x.shape[-1], or jax.scipy.fft.idct(x, norm='ortho')",
    "signal.ifft": "jax.numpy.fft.ifft",
    "signal.ifft2d": "jax.numpy.fft.ifft2",
    "signal.ifftshift": "jax.numpy.fft.ifftshift",
    "signal.inverse_stft": "jax.scipy.signal.istft, which takes other arguments",
    "signal.irfft": "jax.numpy.fft.irfft",
    "signal.kaiser_window": "jax.numpy.kaiser(n, beta)",
    "signal.rfft": "jax.numpy.fft.rfft",
    "signal.stft": "jax.scipy.signal.stft, which takes other arguments",
    "trace": "jax.numpy.trace(x, axis1=-2, axis2=-1)",
    # tf.random
    "random.all_candidate_sampler": "sg.random.shuffle(sg.range(n))",
    "random.experimental.index_shuffle": "sg.random.experimental.stateless_shuffle(sg.range(n), seed)[index]",
    "random.uniform_candidate_sampler": "sg.random.uniform(shape, maxval=n, dtype=sg.int32)",
    "set_random_seed": "sg.random.set_seed",
    # tf.nn and tf.image
    "image.extract_glimpse": "sg.image.crop_and_resize, or sg.image.extract_patches",
    "image.non_max_suppression_padded": "sg.image.combined_non_max_suppression, which gives a fixed number of boxes",
    "nn.ctc_loss": "optax.ctc_loss",
}
