"""``tf.math``, ``tf.linalg`` and ``tf.signal``: what of them is not here."""

__all__ = ["MATHEMATICS"]

MATHEMATICS: dict[str, str] = {
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
}
