"""``tf.compat``: text and bytes; switches of TensorFlow 1 that have no effect; what its names became."""

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
    """Returns text as bytes, and bytes as they are.

    >>> as_bytes("text")
    b'text'
    """
    if isinstance(bytes_or_text, (bytes, bytearray)):
        return bytes(bytes_or_text)
    if isinstance(bytes_or_text, str):
        return bytes_or_text.encode(encoding)
    raise TypeError(f"A string or bytes are needed, got {bytes_or_text!r}.")


def as_text(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> str:
    """Returns bytes as text, and text as it is.

    >>> as_text(b"text")
    'text'
    """
    if isinstance(bytes_or_text, str):
        return bytes_or_text
    if isinstance(bytes_or_text, bytes):
        return bytes_or_text.decode(encoding)
    raise TypeError(f"A string or bytes are needed, got {bytes_or_text!r}.")


as_str = as_text


def as_str_any(value: object, encoding: str = "utf-8") -> str:
    """Returns bytes as text, and anything else as ``str`` has it.

    >>> as_str_any(b"text"), as_str_any(3)
    ('text', '3')
    """
    return as_text(value, encoding) if isinstance(value, bytes) else str(value)


def path_to_str(path: PathLike) -> PathLike:
    """Returns a ``PathLike`` as text, and anything else as it is.

    >>> path_to_str("a/b")
    'a/b'
    """
    return as_str_any(os.fspath(path)) if hasattr(path, "__fspath__") else path


def enable_v2_behavior() -> None:
    """Has no effect: it is the only behavior.

    >>> enable_v2_behavior()
    """


def enable_eager_execution(
    config: object = None, device_policy: object = None, execution_mode: object = None
) -> None:
    """Has no effect: execution is eager outside of compiled functions.

    >>> enable_eager_execution()
    """


def enable_resource_variables() -> None:
    """Has no effect: there are no others.

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
    """Returns the error for a name of ``tf.compat.v1`` that is not here, with what to write instead.

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
            or "There are no graphs and sessions: use names of TensorFlow 2."
        )
    return AttributeError(f"{text}. {hint}", name=name)
