"""The secret that the processes of a cluster share."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from stratagem._src.cluster.environment_variables import is_set, read_text
from stratagem._src.cluster.errors import EnvironmentVariableError

__all__ = ["FILE_VARIABLE", "SECRET_VARIABLE", "job_secret", "new_secret", "read_secret"]

SECRET_VARIABLE = "STRATAGEM_CLUSTER_SECRET"
FILE_VARIABLE = "STRATAGEM_CLUSTER_SECRET_FILE"
_MIN_CHARACTERS = 16


def new_secret() -> str:
    """Returns a new random secret."""
    return secrets.token_hex(32)


def read_secret(
    variable: str = SECRET_VARIABLE,
    file_variable: str = FILE_VARIABLE,
    should_hold: str = "the secret that the nodes of a job share",
) -> str:
    """Reads a secret from the environment, directly or from the file that it names.

    Args:
        variable: The variable that holds the secret.
        file_variable: The variable that holds the path of a file with the secret.
        should_hold: A description of the secret, for errors.

    Raises:
        EnvironmentVariableError: If there is none, its file cannot be read, or it is too short. The message
            does not contain the secret.
    """
    if is_set(variable) or not is_set(file_variable):
        secret = read_text(
            variable, should_hold, f"Set it, or {file_variable}, to the same on every node."
        )
        source = variable
    else:
        source = file_variable
        path = os.environ[file_variable].strip()
        try:
            secret = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise EnvironmentVariableError(
                file_variable, path, f"the path of a readable text file ({error})"
            ) from None
    if len(secret) < _MIN_CHARACTERS:
        raise EnvironmentVariableError(
            source,
            f"<{len(secret)} characters>",
            f"a secret of at least {_MIN_CHARACTERS} characters, such as 'openssl rand -hex 32' "
            "prints",
        )
    return secret


def job_secret(shared: str, job_id: str) -> str:
    """Derives the secret of one run of a job; it does not reveal the shared secret.

    >>> from stratagem._src.transport.secret import job_secret
    >>> job_secret("correct horse battery", "1") == job_secret("correct horse battery", "2")
    False
    """
    message = f"stratagem job {job_id}".encode()
    return hmac.new(shared.encode(), message, hashlib.sha256).hexdigest()
