"""``Credentials``: the secret and TLS files by which the tasks of a cluster authenticate each other."""

from __future__ import annotations

import enum
import functools
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from stratagem._src.cluster.environment_variables import is_set
from stratagem._src.cluster.errors import EnvironmentVariableError, MissingVariableError
from stratagem._src.cluster.loopback import loopback_address
from stratagem._src.core.errors import PermissionDeniedError
from stratagem._src.transport.local_secret import local_secret
from stratagem._src.transport.secret import FILE_VARIABLE, SECRET_VARIABLE, read_secret

__all__ = ["Credentials", "SecretKind", "TLSFiles"]

AUTHORITY_VARIABLE = "STRATAGEM_TLS_AUTHORITY"
CERTIFICATE_VARIABLE = "STRATAGEM_TLS_CERTIFICATE"
KEY_VARIABLE = "STRATAGEM_TLS_KEY"
_TLS_VARIABLES = {
    AUTHORITY_VARIABLE: "the path of the certificate that signed those of all tasks",
    CERTIFICATE_VARIABLE: "the path of this task's certificate",
    KEY_VARIABLE: "the path of the private key of this task's certificate",
}
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True)
class TLSFiles:
    """The PEM files for mutual TLS.

    Args:
        authority: The certificate of the authority that signed the certificates of all tasks.
        certificate: This task's certificate. It names the hosts at which others reach the task.
        key: The private key of the certificate.
    """

    authority: str
    certificate: str
    key: str

    @functools.cached_property
    def server_context(self) -> ssl.SSLContext:
        """The TLS context of servers: clients must present a certificate."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    @functools.cached_property
    def client_context(self) -> ssl.SSLContext:
        """The TLS context of clients: the server's certificate must name the host."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    @functools.cached_property
    def own_certificate(self) -> bytes:
        """This task's certificate in DER form, as peers see it."""
        text = Path(self.certificate).read_text(encoding="ascii", errors="replace")
        first = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
        return ssl.PEM_cert_to_DER_cert(first)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise EnvironmentVariableError(
                ", ".join(_TLS_VARIABLES),
                f"{self.authority}, {self.certificate}, {self.key}",
                f"the paths of a certificate authority, a certificate and its key, in PEM form "
                f"({error})",
            ) from None
        return context


class SecretKind(enum.IntEnum):
    """The kind of secret that peers must know: none, that of the cluster, or that of the local user."""

    NONE = 0
    CLUSTER = 1
    USER = 2


@dataclass(frozen=True)
class Credentials:
    """A shared secret, TLS files, both, or neither.

    With neither, the tasks of one user on one machine share a secret in a local file, and other tasks
    cannot be reached.

    >>> from stratagem._src.transport import Credentials
    >>> Credentials(secret="correct horse battery staple")
    Credentials(tls=None)

    Args:
        secret: The secret that every task of the cluster knows. It is never sent and never shown.
        tls: Files for mutual TLS.
        kind: The kind of the secret.
    """

    secret: str | None = field(default=None, repr=False)
    tls: TLSFiles | None = None
    kind: SecretKind = field(default=SecretKind.CLUSTER, repr=False)

    def check(self) -> None:
        """Raises ``EnvironmentVariableError`` if the TLS files cannot be used."""
        if self.tls is not None:
            self.tls.server_context  # noqa: B018
            self.tls.client_context  # noqa: B018

    @property
    def secret_kind(self) -> SecretKind:
        """The kind of the secret, or ``NONE`` without a secret."""
        return SecretKind.NONE if self.secret is None else self.kind

    def for_host(self, host: str) -> Credentials:
        """Returns the credentials for connections with a task on a host: never empty ones.

        Raises:
            PermissionDeniedError: If there is neither secret nor TLS and the host is not this machine.
        """
        if self.secret is not None or self.tls is not None:
            return self
        if loopback_address(host) is not None:
            return self.for_loopback()
        raise PermissionDeniedError(
            "Without a secret or TLS only tasks on this machine may connect, so the address must be "
            f"loopback, got the host {host!r}. Set STRATAGEM_CLUSTER_SECRET or the STRATAGEM_TLS_ "
            "variables in every task ('stratagem run' creates a secret), or use 127.0.0.1."
        )

    @classmethod
    def for_loopback(cls) -> Self:
        """Returns the credentials that the processes of this user on this machine share.

        Raises:
            PermissionDeniedError: If the file of the secret cannot be private to this user.
        """
        return cls(local_secret(), kind=SecretKind.USER)

    @classmethod
    def from_environment(cls) -> Self:
        """Reads the credentials from the environment.

        The variables are ``STRATAGEM_CLUSTER_SECRET`` or ``STRATAGEM_CLUSTER_SECRET_FILE`` (a path), and
        the paths ``STRATAGEM_TLS_AUTHORITY``, ``STRATAGEM_TLS_CERTIFICATE`` and ``STRATAGEM_TLS_KEY``.

        Raises:
            EnvironmentVariableError: If a variable is invalid.
        """
        secret = read_secret() if is_set(SECRET_VARIABLE) or is_set(FILE_VARIABLE) else None
        return cls(secret, _tls_files())


def _tls_files() -> TLSFiles | None:
    given = [variable for variable in _TLS_VARIABLES if is_set(variable)]
    if not given:
        return None
    for variable, should_hold in _TLS_VARIABLES.items():
        if variable not in given:
            raise MissingVariableError(
                variable, should_hold, f"Set it, or none of {', '.join(_TLS_VARIABLES)}."
            )
    return TLSFiles(*(os.environ[variable].strip() for variable in _TLS_VARIABLES))
