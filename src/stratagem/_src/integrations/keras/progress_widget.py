"""``with_progress_widget``: Keras's progress bar as a widget in notebooks."""

from __future__ import annotations

import inspect
import time
from typing import Any

import keras

from stratagem._src.process.notebook import notebook_widgets
from stratagem._src.training.progress_widget import ProgressWidget

__all__ = ["with_progress_widget"]

_REFRESH_SECONDS = 0.1


def with_progress_widget(bound: inspect.BoundArguments) -> dict[str, Any] | None:
    """Returns the arguments of ``fit``, ``evaluate`` or ``predict`` with a widget instead of text.

    Args:
        bound: The arguments of the call.

    Returns:
        The arguments without the model; ``None`` if the call keeps its own: outside of notebooks, or if it
        prints nothing or one line per epoch.
    """
    widgets = notebook_widgets()
    if widgets is None:
        return None
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    del arguments["self"]
    callbacks = arguments.get("callbacks", ())
    if (
        "callbacks" not in arguments
        or arguments.get("verbose") not in ("auto", 1)
        or isinstance(callbacks, keras.callbacks.CallbackList)
    ):
        return None
    arguments.update(arguments.pop("kwargs", {}))
    given = keras.tree.flatten(callbacks) if callbacks else []
    return {**arguments, "verbose": 0, "callbacks": [*given, _ProgressCallback(widgets)]}


class _ProgressCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Shows a bar for each epoch, with the metrics; also for ``evaluate`` and ``predict``."""

    def __init__(self, widgets: Any) -> None:
        super().__init__()
        self._widgets = widgets
        self._widget: ProgressWidget | None = None
        self._in_fit = False
        self._count = 0
        self._next = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self._in_fit = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin(f"Epoch {epoch + 1}/{self.params['epochs']}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._advance(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._end(logs)

    def on_test_begin(self, logs: Any = None) -> None:
        if (
            not self._in_fit
        ):  # in fit, the bar of the epoch gets the validation's metrics at its end
            self._begin("evaluate")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._in_fit:
            self._advance(batch, logs)

    def on_test_end(self, logs: Any = None) -> None:
        if not self._in_fit:
            self._end(logs)

    def on_predict_begin(self, logs: Any = None) -> None:
        self._begin("predict")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._advance(batch, {})

    def on_predict_end(self, logs: Any = None) -> None:
        self._end({})

    def _begin(self, description: str) -> None:
        self._count, self._next = 0, 0.0
        self._widget = ProgressWidget(self._widgets, self.params.get("steps"), description)

    def _advance(self, batch: int, logs: Any) -> None:
        self._count = batch + 1
        now = time.monotonic()
        if self._widget is not None and now >= self._next:
            self._next = now + _REFRESH_SECONDS
            self._widget.show(self._count, self._text(logs))

    def _end(self, logs: Any) -> None:
        if self._widget is not None:
            self._widget.show(self._count, self._text(logs))
            self._widget.end(self._count)

    def _text(self, logs: Any) -> str:
        steps = self.params.get("steps")
        words = [str(self._count) if steps is None else f"{self._count}/{steps}"]
        words += [f"{name}: {float(value):.4g}" for name, value in (logs or {}).items()]
        return "  ".join(words)
