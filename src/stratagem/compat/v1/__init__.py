"""``tf.compat.v1``: switches without effect, files, logging; errors for other names say what to use.

Sessions, graphs and placeholders do not exist: ``tf.function`` compiles functions.
"""

from typing import TYPE_CHECKING, Any

from stratagem._src.cluster.config_proto import ConfigProto
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.compat import (
    enable_control_flow_v2,
    enable_eager_execution,
    enable_resource_variables,
    enable_tensor_equality,
    enable_v2_behavior,
    enable_v2_tensorshape,
    executing_eagerly_outside_functions,
    missing_v1_name,
)
from stratagem._src.tensorflow_api.control_flow import executing_eagerly
from stratagem._src.tensorflow_api.host_calls import get_logger

if TYPE_CHECKING:
    from stratagem.compat.v1 import gfile, logging

__all__ = [
    "ConfigProto",
    "enable_control_flow_v2",
    "enable_eager_execution",
    "enable_resource_variables",
    "enable_tensor_equality",
    "enable_v2_behavior",
    "enable_v2_tensorshape",
    "executing_eagerly",
    "executing_eagerly_outside_functions",
    "get_logger",
    "gfile",
    "logging",
]

_find = lazy_names(
    __name__, {name: (f"stratagem.compat.v1.{name}", None) for name in ("gfile", "logging")}
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in __all__:
            return _find(name)
        raise missing_v1_name(name)
