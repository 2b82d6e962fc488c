"""``SidecarEvaluator`` of a Keras model, as ``tf.keras.utils`` has it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stratagem._src.checkpoint.checkpoint import Checkpoint
from stratagem._src.checkpoint.sidecar_evaluator import SidecarEvaluator
from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.keras_internals import KerasModel

__all__ = ["ModelEvaluator"]


class ModelEvaluator:
    """Evaluates a Keras model with every new checkpoint: ``keras.utils.SidecarEvaluator``.

    It runs in a separate process (``stratagem run --evaluator``). Training saves with
    ``Checkpoint(model=model, optimizer=model.optimizer)``; its ``iterations`` is the step of the results.

    Args:
        model: The compiled model.
        data: The data of ``model.evaluate``.
        checkpoint_dir: The directory that training saves to.
        steps: The number of batches of an evaluation.
        max_evaluations: Number of evaluations before it ends; default no limit.
        callbacks: Callbacks of ``model.evaluate``. A ``TensorBoard`` callback writes the results with the
            step of the checkpoint.

    Raises:
        TypeError: If the model is not compiled.

    >>> import tempfile
    >>> import stratagem as sg
    >>> model = sg.keras.Sequential([sg.keras.Input((1,)), sg.keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> model.optimizer.build(model.trainable_variables)
    >>> directory = tempfile.mkdtemp()
    >>> path = sg.train.Checkpoint(model=model, optimizer=model.optimizer).save(directory + "/ckpt")
    >>> data = sg.data.Dataset.from_tensor_slices(([[1.0]], [[1.0]])).batch(1)
    >>> evaluator = sg.keras.utils.SidecarEvaluator(model, data, directory, max_evaluations=1)
    >>> list(evaluator.start()[0])
    ['loss']
    """

    def __init__(
        self,
        model: KerasModel,
        data: PyTree,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        if not getattr(model, "compiled", False):
            raise TypeError(
                f"SidecarEvaluator needs a compiled Keras model, got {model!r}. Call "
                "model.compile(loss=..., metrics=...) first, or evaluate any function with "
                "sg.train.SidecarEvaluator."
            )
        self._model = model
        self._data = data
        self._steps = steps
        self._callbacks = list(callbacks or ())
        self._evaluator = SidecarEvaluator(
            self._evaluate,
            Checkpoint(model=model, optimizer=model.optimizer),
            checkpoint_dir,
            step=model.optimizer.iterations,
            max_evaluations=max_evaluations,
        )

    def start(self) -> dict[int, dict[str, float]]:
        """Evaluates checkpoints until ``max_evaluations`` is reached.

        Returns:
            The numbers of each evaluation, by step.
        """
        return self._evaluator.start()

    def _evaluate(self) -> dict[str, Any]:
        if not self._model.optimizer.built:
            # Restores an optimizer whose slots do not exist yet, so that callbacks see its iterations.
            self._model.evaluate(self._data, steps=1, verbose=0)
            self._model.optimizer.build(self._model.trainable_variables)
        results: dict[str, Any] = self._model.evaluate(
            self._data, steps=self._steps, callbacks=self._callbacks, verbose=0, return_dict=True
        )
        return results
