"""The credentials for a transport protocol."""

from __future__ import annotations

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.task_server.task_definition import check_protocol
from stratagem._src.transport import Credentials

__all__ = ["credentials_for"]


def credentials_for(protocol: str) -> Credentials:
    """Returns the credentials of the environment, and checks that they suffice for a protocol.

    Raises:
        InvalidArgumentError: If the protocol is unknown, or uses TLS without certificates.
    """
    check_protocol(protocol)
    credentials = Credentials.from_environment()
    if protocol == "grpc+tls" and credentials.tls is None:
        raise InvalidArgumentError(
            "The protocol 'grpc+tls' needs certificates, got none. Set their files in "
            "STRATAGEM_TLS_AUTHORITY, STRATAGEM_TLS_CERTIFICATE and STRATAGEM_TLS_KEY."
        )
    return credentials
