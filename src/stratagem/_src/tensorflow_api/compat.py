"""``tf.compat``: text and bytes, TensorFlow 1 switches without effect, and hints for missing names."""

from __future__ import annotations

import os
import sys

from stratagem._src.core.missing_names import missing_name
from stratagem._src.core.types import PathLike

__all__ = [
    "as_bytes",
    "as_str",
    "as_str_any",
    "as_text",
    "enable_control_flow_v2",
    "enable_eager_execution",
    "enable_resource_variables",
    "enable_tensor_equality",
    "enable_v2_behavior",
    "enable_v2_tensorshape",
    "executing_eagerly_outside_functions",
    "missing_v1_name",
    "path_to_str",
]


def as_bytes(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> bytes:
    """Converts text to bytes.

    >>> as_bytes("text")
    b'text'
    """
    if isinstance(bytes_or_text, (bytes, bytearray)):
        return bytes(bytes_or_text)
    if isinstance(bytes_or_text, str):
        return bytes_or_text.encode(encoding)
    raise TypeError(f"Expected a string or bytes, got {bytes_or_text!r}.")


def as_text(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> str:
    """Converts bytes to text.

    >>> as_text(b"text")
    'text'
    """
    if isinstance(bytes_or_text, str):
        return bytes_or_text
    if isinstance(bytes_or_text, bytes):
        return bytes_or_text.decode(encoding)
    raise TypeError(f"Expected a string or bytes, got {bytes_or_text!r}.")


as_str = as_text


def as_str_any(value: object, encoding: str = "utf-8") -> str:
    """Converts bytes to text, and anything else with ``str``.

    >>> as_str_any(b"text"), as_str_any(3)
    ('text', '3')
    """
    return as_text(value, encoding) if isinstance(value, bytes) else str(value)


def path_to_str(path: PathLike) -> PathLike:
    """Converts a ``PathLike`` to text, and returns anything else unchanged.

    >>> path_to_str("a/b")
    'a/b'
    """
    return as_str_any(os.fspath(path)) if hasattr(path, "__fspath__") else path


def enable_v2_behavior() -> None:
    """Has no effect: TensorFlow 2 behavior is always on.

    >>> enable_v2_behavior()
    """


def enable_eager_execution(
    config: object = None, device_policy: object = None, execution_mode: object = None
) -> None:
    """Has no effect: execution is eager outside compiled functions.

    >>> enable_eager_execution()
    """


def enable_resource_variables() -> None:
    """Has no effect: all variables are resource variables.

    >>> enable_resource_variables()
    """


def enable_control_flow_v2() -> None:
    """Has no effect.

    >>> enable_control_flow_v2()
    """


def enable_tensor_equality() -> None:
    """Has no effect: arrays are compared element by element.

    >>> enable_tensor_equality()
    """


def enable_v2_tensorshape() -> None:
    """Has no effect.

    >>> enable_v2_tensorshape()
    """


def executing_eagerly_outside_functions() -> bool:
    """Returns ``True``.

    >>> executing_eagerly_outside_functions()
    True
    """
    return True


def missing_v1_name(name: str) -> AttributeError:
    """Returns the error for a missing name of ``tf.compat.v1``, with its replacement.

    >>> str(missing_v1_name("reduce_sum")).partition(". ")[2]
    "Use tf.reduce_sum; its arguments are TensorFlow 2's."
    """
    made = missing_name("stratagem.compat.v1", name)
    if name.startswith("_") or "For tf." in str(made):
        return made
    text = f"module 'stratagem.compat.v1' has no attribute {name!r}"
    if name in sys.modules["stratagem"].__all__:
        hint = f"Use tf.{name}; its arguments are TensorFlow 2's."
    else:
        about = str(missing_name("stratagem", name))
        hint = (
            about.partition(". ")[2]
            or "Graphs and sessions do not exist here: use TensorFlow 2 names."
        )
    return AttributeError(f"{text}. {hint}", name=name)
