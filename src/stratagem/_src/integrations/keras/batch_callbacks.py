"""What Keras does after each batch for its callbacks: nothing, if none of them looks at batches.

Otherwise it hands the batch's results to a thread, which waits for them and turns them into numbers that
nobody asks for, while the next step is to be launched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from stratagem._src.integrations.keras.running_call import running_call
from stratagem._src.integrations.keras.trainer_internals import is_default

__all__ = ["install_batch_callbacks"]

# What Keras' own does calls the second.
_HOOKS = {
    "on_train_batch_end": ("on_train_batch_end", "on_batch_end"),
    "on_test_batch_end": ("on_test_batch_end",),
    "on_predict_batch_end": ("on_predict_batch_end",),
}


def install_batch_callbacks() -> None:
    """Has callbacks of models that belong to a strategy called after batches if one has use for it."""
    for name, hooks in _HOOKS.items():
        original = getattr(keras.callbacks.CallbackList, name)
        setattr(keras.callbacks.CallbackList, name, _if_wanted(original, hooks))


def _if_wanted(original: Callable[..., None], hooks: tuple[str, ...]) -> Callable[..., None]:
    @functools.wraps(original)
    def on_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        if running_call() is None or any(
            not is_default(getattr(callback, hook)) for callback in self.callbacks for hook in hooks
        ):
            original(self, batch, logs)

    return on_batch_end
