"""``PageCertificate``: the certificate with which the dashboard is served over HTTPS."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from stratagem._src.cluster.errors import LaunchError

__all__ = ["PageCertificate"]


class PageCertificate(NamedTuple):
    """The files of a certificate, as web servers take them.

    Attributes:
        certfile: A PEM file with the certificate of this host, and those of intermediate authorities.
        keyfile: A PEM file with the private key; ``None`` if it is in ``certfile``.
    """

    certfile: str
    keyfile: str | None = None

    def server_context(self) -> ssl.SSLContext:
        """Returns the TLS context of a server with this certificate.

        Raises:
            LaunchError: If a file cannot be read, or the key is not that of the certificate.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # Without a password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.certfile, self.keyfile, password="")
        except OSError as error:  # ssl.SSLError is one
            files = self.certfile if self.keyfile is None else f"{self.certfile} and {self.keyfile}"
            raise LaunchError(
                "--dashboard-certfile and --dashboard-keyfile must be PEM files with a certificate and its "
                f"private key without a password, got {files} ({error.strerror or error}). Create them, "
                "for example with 'openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem "
                "-days 30 -subj /CN=NAME -addext subjectAltName=DNS:NAME'."
            ) from None
        return context
