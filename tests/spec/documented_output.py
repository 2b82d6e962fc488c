"""What TensorFlow's documentation shows, as Stratagem writes it: the whole list of what differs.

- Arrays are JAX's: ``<tf.Tensor: shape=(1,), dtype=float32, numpy=array([5.], dtype=float32)>`` and
  ``tf.Tensor([5.], shape=(1,), dtype=float32)`` are both ``Array([5.], dtype=float32)``.
- Integers have 32 bits unless JAX is told otherwise: ``int64`` is ``int32``.
- Variables are ours: ``<tf.Variable ...>`` is ``<sg.Variable ...>``.
- CPU devices stand in for GPUs: ``device:GPU:0`` is ``device:CPU:0``.

In the programs themselves ``jax.numpy`` stands in for TensorFlow's operations.
"""

import re

_ARRAYS = [
    (r"<tf\.Tensor: shape=\(\), dtype=(\w+), numpy=([^>]*)>", r"Array(\2, dtype=\1)"),
    (r"<tf\.Tensor: shape=\([^)]*\), dtype=\w+, numpy=\s*array\((.*?)\)>", r"Array(\1)"),
    (
        r"tf\.Tensor\((\[[^\]]*\]), shape=\([^)]*\), dtype=(\w+)\)",
        lambda found: f"Array([{', '.join(found[1][1:-1].split())}], dtype={found[2]})",
    ),
]
_NAMES = [("int64", "int32"), ("<tf.Variable", "<sg.Variable"), ("device:GPU", "device:CPU")]


def as_shown(documented):
    """Returns what Stratagem writes where TensorFlow's documentation shows this."""
    for pattern, ours in _ARRAYS:
        documented = re.sub(pattern, ours, documented, flags=re.DOTALL)
    for theirs, ours in _NAMES:
        documented = documented.replace(theirs, ours)
    return one_line(documented)


def one_line(text):
    """Returns a text without what only lays it out."""
    return re.sub(r"\s+", " ", text).strip()


def shows(value, documented):
    """Whether a value at the prompt looks as documented."""
    return one_line(repr(value)) == as_shown(documented)


def prints(value, documented):
    """Whether a value is printed as documented."""
    return one_line(str(value)) == as_shown(documented)
