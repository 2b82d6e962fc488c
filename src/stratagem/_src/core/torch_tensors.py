"""Tensors of PyTorch, recognized without importing it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Leaf

__all__ = ["array_of_tensor", "check_not_tensor", "is_tensor"]


def is_tensor(value: object) -> bool:
    """Returns whether a value is a tensor of PyTorch, or a parameter."""
    is_of_torch = type(value).__module__.partition(".")[0] == "torch"
    return is_of_torch and hasattr(value, "detach") and hasattr(value, "numpy")


def array_of_tensor(tensor: Any) -> np.ndarray[Any, Any]:
    """Returns the value of a tensor as a NumPy array; bfloat16, which NumPy lacks, as float32."""
    detached = tensor.detach().cpu()
    is_bfloat16 = str(detached.dtype) == "torch.bfloat16"
    array: np.ndarray[Any, Any] = (detached.float() if is_bfloat16 else detached).numpy()
    return array


def check_not_tensor(leaf: Leaf) -> None:
    """Checks that an argument of a step is not a tensor of PyTorch.

    Raises:
        InvalidArgumentError: If it is one.
    """
    if is_tensor(leaf):
        raise InvalidArgumentError(
            "A step takes JAX and NumPy arrays, got a torch.Tensor. Pass tensor.detach().cpu().numpy(); or "
            "distribute the DataLoader with strategy.experimental_distribute_dataset(loader), which "
            "converts its batches."
        )
