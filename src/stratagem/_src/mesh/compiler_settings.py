"""``tf.config.threading`` and ``tf.config.optimizer``: settings of TensorFlow's runtime.

XLA compiles every function and has threads of its own. Settings that change only speed are kept and have
no effect; one that changes numbers raises.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

from stratagem._src.core.errors import UnsupportedError

__all__ = [
    "get_experimental_options",
    "get_inter_op_parallelism_threads",
    "get_intra_op_parallelism_threads",
    "get_jit",
    "set_experimental_options",
    "set_inter_op_parallelism_threads",
    "set_intra_op_parallelism_threads",
    "set_jit",
]

_logger = logging.getLogger("stratagem")
_MIXED_PRECISION = "auto_mixed_precision"


class _Settings:
    """What the program has set."""

    def __init__(self) -> None:
        self.num_threads = {"inter_op": 0, "intra_op": 0}
        self.options: dict[str, bool] = {}


_SETTINGS = _Settings()


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Keeps the number, without effect: one program runs at a time.

    >>> import stratagem as sg
    >>> sg.config.threading.set_inter_op_parallelism_threads(2)
    """
    _SETTINGS.num_threads["inter_op"] = int(num_threads)


def get_inter_op_parallelism_threads() -> int:
    """Returns the number that was set; 0 by default.

    >>> import stratagem as sg
    >>> sg.config.threading.get_inter_op_parallelism_threads() >= 0
    True
    """
    return _SETTINGS.num_threads["inter_op"]


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Keeps the number, without effect, and logs that ``PJRT_NPROC`` in the environment has one.

    >>> import stratagem as sg
    >>> sg.config.threading.set_intra_op_parallelism_threads(0)
    """
    if num_threads and num_threads != _SETTINGS.num_threads["intra_op"]:
        _logger.warning(
            "set_intra_op_parallelism_threads(%d) has no effect: XLA uses a thread for each core. Set "
            "PJRT_NPROC=%d in the environment.",
            num_threads,
            num_threads,
        )
    _SETTINGS.num_threads["intra_op"] = int(num_threads)


def get_intra_op_parallelism_threads() -> int:
    """Returns the number that was set; 0 by default.

    >>> import stratagem as sg
    >>> sg.config.threading.get_intra_op_parallelism_threads() >= 0
    True
    """
    return _SETTINGS.num_threads["intra_op"]


def set_jit(enabled: bool | Literal["autoclustering"]) -> None:
    """Has no effect: XLA compiles every ``tf.function``.

    >>> import stratagem as sg
    >>> sg.config.optimizer.set_jit(True)
    """


def get_jit() -> str:
    """Returns ``"autoclustering"``: XLA compiles every ``tf.function``.

    >>> import stratagem as sg
    >>> sg.config.optimizer.get_jit()
    'autoclustering'
    """
    return "autoclustering"


def set_experimental_options(options: dict[str, bool]) -> None:
    """Keeps options of TensorFlow's graph optimizer, which have no effect.

    Args:
        options: Names and whether they are on. Those of automatic mixed precision cannot be.

    Raises:
        UnsupportedError: If automatic mixed precision is on.

    >>> import stratagem as sg
    >>> sg.config.optimizer.set_experimental_options({"constant_folding": True})
    """
    if wrong := [name for name, on in options.items() if on and name.startswith(_MIXED_PRECISION)]:
        raise UnsupportedError(
            f"Programs keep the dtypes they are written with, got {wrong[0]}=True. Use "
            "tf.keras.mixed_precision.set_global_policy('mixed_bfloat16'), or precision= of "
            "sg.train.Optimizer."
        )
    _SETTINGS.options.update(options)


def get_experimental_options() -> dict[str, Any]:
    """Returns the options that were set.

    >>> import stratagem as sg
    >>> isinstance(sg.config.optimizer.get_experimental_options(), dict)
    True
    """
    return dict(_SETTINGS.options)
