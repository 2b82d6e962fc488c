"""The library's exceptions: for what goes wrong with devices, variables, tracing, input, files and tasks.

A mistake in a call, such as an argument of the wrong type, may also raise a plain built-in exception, as in
TensorFlow and NumPy.

::

    StratagemError
    ├── ContextError (RuntimeError)            called in the wrong replica or strategy context
    │   └── OnWorkersOnlyError (also NotImplementedError) not available in the coordinator
    ├── ReplicaMismatchError (RuntimeError)    replicas did not run the same collective
    ├── DeviceError (ValueError)               a device that does not exist or cannot be used
    ├── BackendStartedError (RuntimeError)     a device setting after JAX was initialized
    ├── KerasBackendError (RuntimeError)       Keras uses another backend than JAX
    ├── ProfileError (RuntimeError)            a profile that is already running, or is not
    ├── MissingExtraError (ImportError)        a library that is not installed
    ├── ShapeMismatchError (ValueError)        shapes that do not fit together
    ├── NotAnArrayError (ValueError)           a per-replica value used as one array
    ├── VariableError (ValueError)             an update or read that a variable does not allow
    │   ├── OperandTypeError (also TypeError)  an update with an operand of the wrong type
    │   └── UnsupportedError (also NotImplementedError) an operation that is not supported here
    ├── TracedValueError (TypeError)           Python needed the value of a traced array
    ├── SignatureMismatchError (TypeError)     a call that does not match its input_signature
    ├── PartitionError (ValueError)            a shape, axis or result that cannot be partitioned
    ├── InvalidArgumentError (ValueError)      an argument or an element of a dataset breaks a rule
    ├── DataLossError (RuntimeError)           a truncated or corrupt file, or an unparsable record
    ├── NotFoundError (FileNotFoundError)      a file or pattern that names nothing
    ├── AlreadyExistsError (FileExistsError)   a file that would be overwritten
    ├── FailedPreconditionError (RuntimeError) an object in the wrong state for an operation
    ├── OutOfRangeError (IndexError)           a read past the end of the data
    ├── CardinalityError (TypeError)           the length of an infinite or unknown dataset
    ├── ShippingError (TypeError)              an object that cannot be sent to another process
    ├── CancelledError (RuntimeError)          a scheduled function that did not run: another failed
    ├── UnavailableError (ConnectionError)     a task that is lost, stopped, or does not join in time
    │   └── PSUnavailableError                 a parameter server that is lost with its variables
    ├── DeadlineExceededError (TimeoutError)   a task that did not answer in time
    ├── UnauthenticatedError (PermissionError) a peer that failed authentication
    ├── PermissionDeniedError (PermissionError) an operation that would not be safe
    └── RemoteError (RuntimeError)             another task's exception that cannot be rebuilt here

Each also derives from the built-in exception that ``tf.distribute`` raises in its place, so existing
``except ValueError`` clauses keep working.
"""

from __future__ import annotations

from collections.abc import Mapping


class StratagemError(Exception):
    """Base class of the library's exceptions; mistakes in calls may also raise plain built-in ones."""


class ContextError(StratagemError, RuntimeError):
    """A call in the wrong context: replica instead of cross-replica, or another strategy's."""


class OnWorkersOnlyError(ContextError, NotImplementedError):
    """An operation that only workers support was called in the coordinator."""


class ReplicaMismatchError(StratagemError, RuntimeError):
    """Replicas that must run the same collective ran different ones, or not all of them arrived."""


class DeviceError(StratagemError, ValueError):
    """A device description that is malformed or names no device of this machine."""


class BackendStartedError(StratagemError, RuntimeError):
    """A device setting was changed after the JAX backend was initialized."""


class KerasBackendError(StratagemError, RuntimeError):
    """Keras was loaded with another backend than JAX."""


class ProfileError(StratagemError, RuntimeError):
    """A profile was started while one is running, or stopped while none is."""


class MissingExtraError(StratagemError, ImportError):
    """A library that an optional part needs is not installed."""


class ShapeMismatchError(StratagemError, ValueError):
    """Shapes that do not fit the operation."""


class NotAnArrayError(StratagemError, ValueError):
    """A value that differs per replica was used as if it were one array."""


class VariableError(StratagemError, ValueError):
    """A read or update that the variable's synchronization or aggregation does not allow."""


class OperandTypeError(VariableError, TypeError):
    """An update of a variable with an operand of the wrong type."""


class UnsupportedError(VariableError, NotImplementedError):
    """An operation that values of this kind, or in this context, do not support."""


class TracedValueError(StratagemError, TypeError):
    """Python control flow needed the value of an array that is only known on the device."""


class SignatureMismatchError(StratagemError, TypeError):
    """A call of a compiled function that does not match the ``input_signature`` it was made with."""


class PartitionError(StratagemError, ValueError):
    """A shape, axis, setting or partitioner result is invalid for partitioning a variable."""


class InvalidArgumentError(StratagemError, ValueError):
    """An argument, or an element of a dataset, that breaks a rule."""


class DataLossError(StratagemError, RuntimeError):
    """A file that is truncated or corrupt, or holds a record that does not parse."""


class NotFoundError(StratagemError, FileNotFoundError):
    """A file, or a pattern of files, that does not exist."""


class AlreadyExistsError(StratagemError, FileExistsError):
    """A file or directory that exists and must not be replaced."""


class FailedPreconditionError(StratagemError, RuntimeError):
    """An object that is not in the state that an operation needs."""


class OutOfRangeError(StratagemError, IndexError):
    """A read past the end of the data."""


class CardinalityError(StratagemError, TypeError):
    """The length of a dataset that is infinite or not known."""


class CancelledError(StratagemError, RuntimeError):
    """A scheduled function that did not finish, because another one failed."""


class UnavailableError(StratagemError, ConnectionError):
    """A task that is lost, stopped, unreachable, or does not join in time."""


class DeadlineExceededError(StratagemError, TimeoutError):
    """A task that did not answer in time."""


class UnauthenticatedError(StratagemError, PermissionError):
    """A peer that failed to authenticate as a member of the cluster."""


class PermissionDeniedError(StratagemError, PermissionError):
    """An operation that is rejected because it would not be safe."""


class RemoteError(StratagemError, RuntimeError):
    """An exception of another task that cannot be rebuilt here; its type and text are the message."""


class PSUnavailableError(UnavailableError):
    """A parameter server that is lost, does not answer, or has lost its variables."""


class ShippingError(StratagemError, TypeError):
    """A function, argument or result that cannot be sent to another process."""


def set_public_module(names: Mapping[str, object]) -> None:
    """Sets the module of the errors among ``names`` to ``stratagem.errors``, which re-exports them.

    Tracebacks then show a name that a program can import, and pickles contain no private path.

    Args:
        names: The names of a module that defines errors.
    """
    for found in names.values():
        if isinstance(found, type) and issubclass(found, StratagemError):
            found.__module__ = "stratagem.errors"


set_public_module(globals())
