"""The exceptions that the library raises on purpose, for ``except`` clauses.

Each derives from ``StratagemError`` and from the built-in exception that ``tf.distribute`` raises in its
place. Other names of ``tf.errors`` stand for these: ``OpError`` is ``StratagemError``, ``AbortedError``
is ``UnavailableError``, and ``UnimplementedError`` is ``UnsupportedError``. XLA raises one class for
everything that fails on a device: ``InternalError``, ``ResourceExhaustedError`` and ``UnknownError`` are
``jax.errors.JaxRuntimeError``, whose text begins with the status, such as ``RESOURCE_EXHAUSTED``.
"""

from typing import TYPE_CHECKING

from stratagem._src.cluster.errors import (
    CloudError,
    CloudResourceNotFoundError,
    ClusterSpecError,
    EnvironmentVariableError,
    LaunchError,
    MissingVariableError,
    RendezvousError,
    SlurmAllocationError,
    TaskError,
    UnknownAddressesError,
    UnsupportedTPUFeatureError,
)
from stratagem._src.core.errors import (
    AlreadyExistsError,
    BackendStartedError,
    CancelledError,
    CardinalityError,
    ContextError,
    DataLossError,
    DeadlineExceededError,
    DeviceError,
    FailedPreconditionError,
    InvalidArgumentError,
    KerasBackendError,
    MissingExtraError,
    NotAnArrayError,
    NotFoundError,
    OnWorkersOnlyError,
    OperandTypeError,
    OutOfRangeError,
    PartitionError,
    PermissionDeniedError,
    ProfileError,
    PSUnavailableError,
    RemoteError,
    ReplicaMismatchError,
    ShapeMismatchError,
    ShippingError,
    SignatureMismatchError,
    StratagemError,
    TracedValueError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
    VariableError,
)
from stratagem._src.core.errors import StratagemError as OpError
from stratagem._src.core.errors import UnavailableError as AbortedError
from stratagem._src.core.errors import UnsupportedError as UnimplementedError
from stratagem._src.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from jax.errors import JaxRuntimeError as InternalError
    from jax.errors import JaxRuntimeError as ResourceExhaustedError
    from jax.errors import JaxRuntimeError as UnknownError

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "BackendStartedError",
    "CancelledError",
    "CardinalityError",
    "CloudError",
    "CloudResourceNotFoundError",
    "ClusterSpecError",
    "ContextError",
    "DataLossError",
    "DeadlineExceededError",
    "DeviceError",
    "EnvironmentVariableError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "KerasBackendError",
    "LaunchError",
    "MissingExtraError",
    "MissingVariableError",
    "NotAnArrayError",
    "NotFoundError",
    "OnWorkersOnlyError",
    "OpError",
    "OperandTypeError",
    "OutOfRangeError",
    "PSUnavailableError",
    "PartitionError",
    "PermissionDeniedError",
    "ProfileError",
    "RemoteError",
    "RendezvousError",
    "ReplicaMismatchError",
    "ResourceExhaustedError",
    "ShapeMismatchError",
    "ShippingError",
    "SignatureMismatchError",
    "SlurmAllocationError",
    "StratagemError",
    "TaskError",
    "TracedValueError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownAddressesError",
    "UnknownError",
    "UnsupportedError",
    "UnsupportedTPUFeatureError",
    "VariableError",
]

if not TYPE_CHECKING:
    # Loaded on first use: `import stratagem` does not load JAX.
    _OF_XLA = ("InternalError", "ResourceExhaustedError", "UnknownError")
    __getattr__ = lazy_names(__name__, dict.fromkeys(_OF_XLA, ("jax.errors", "JaxRuntimeError")))
