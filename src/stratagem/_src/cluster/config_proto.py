"""``ConfigProto``: settings of TensorFlow's runtime, accepted for compatibility."""

from __future__ import annotations

import dataclasses

__all__ = ["ConfigProto"]


@dataclasses.dataclass(slots=True)
class ConfigProto:
    """Settings of TensorFlow's runtime, without effect: XLA manages its own threads.

    An unknown field raises ``AttributeError``.

    >>> import stratagem as tf
    >>> config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    >>> config.inter_op_parallelism_threads = 4
    """

    device_count: dict[str, int] = dataclasses.field(default_factory=dict)
    intra_op_parallelism_threads: int = 0
    inter_op_parallelism_threads: int = 0
    use_per_session_threads: bool = False
    device_filters: list[str] = dataclasses.field(default_factory=list)
    allow_soft_placement: bool = False
    log_device_placement: bool = False
    operation_timeout_in_ms: int = 0
    isolate_session_state: bool = False
