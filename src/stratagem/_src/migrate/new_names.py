"""Names of TensorFlow and Keras 2 that have another name in Stratagem and Keras 3."""

from __future__ import annotations

import re

from stratagem._src.core.tensorflow_names import TRANSLATIONS
from stratagem._src.migrate.available import exists
from stratagem._src.migrate.rules import DROP_IN

__all__ = ["new_module", "new_name"]

_REDUCTIONS = {
    "AUTO": '"sum_over_batch_size"',
    "NONE": '"none"',
    "SUM": '"sum"',
    "SUM_OVER_BATCH_SIZE": '"sum_over_batch_size"',
}
# Beginnings of names below tf.keras, the longer ones first.
_OF_KERAS = {
    "callbacks.experimental.": "callbacks.",
    "experimental.CosineDecay": "optimizers.schedules.CosineDecay",
    "layers.experimental.SyncBatchNormalization": "layers.BatchNormalization",
    "layers.experimental.preprocessing.": "layers.",
    "layers.CuDNNGRU": "layers.GRU",
    "layers.CuDNNLSTM": "layers.LSTM",
    "mixed_precision.experimental.LossScaleOptimizer": "mixed_precision.LossScaleOptimizer",
    "mixed_precision.experimental.Policy": "mixed_precision.Policy",
    "mixed_precision.experimental.global_policy": "mixed_precision.global_policy",
    "mixed_precision.experimental.set_policy": "mixed_precision.set_global_policy",
    "optimizers.experimental.": "optimizers.",
    "optimizers.legacy.": "optimizers.",
    "utils.Sequence": "utils.PyDataset",
}


def new_name(name: str) -> str | None:
    """Returns the expression that takes the place of ``tf.<name>``, if it is another name.

    >>> new_name("gfile.GFile"), new_name("keras.optimizers.legacy.Adam")
    ('sg.io.gfile.GFile', 'sg.keras.optimizers.Adam')
    >>> new_name("keras.losses.Reduction.NONE"), new_name("keras.layers.Dense")
    ('"none"', None)
    """
    if name.startswith("keras."):
        return _of_keras(name)
    if name == "newaxis":
        return "jnp.newaxis"
    for old in DROP_IN:
        if name == old or name.startswith(f"{old}."):
            found = TRANSLATIONS[old] + name[len(old) :]
            return re.sub("^jax.numpy", "jnp", found)
    # tf.compat.v1 has names that are the same in TensorFlow 2.
    if name.startswith("compat.v1.") and not exists(name):
        later = name.removeprefix("compat.v1.")
        if (found_later := new_name(later)) is not None:
            return found_later
        return f"sg.{later}" if exists(later) else None
    return None


def new_module(prefix: str) -> str:
    """Returns a module below ``tf.`` under the name that it has now.

    >>> new_module("keras.layers.experimental.preprocessing"), new_module("keras.layers")
    ('keras.layers', 'keras.layers')
    """
    renamed = new_name(f"{prefix}.")
    return prefix if renamed is None else renamed.removeprefix("sg.").rstrip(".")


def _of_keras(name: str) -> str | None:
    below = name.removeprefix("keras.")
    reduction = below.removeprefix("losses.Reduction.")
    if reduction != below:
        return _REDUCTIONS.get(reduction)
    for old, new in _OF_KERAS.items():
        if below.startswith(old):
            return f"sg.keras.{new}{below[len(old) :]}"
    return None
