"""``RayNode``: a Ray actor that runs one node of a job and streams its output."""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Iterator, Sequence

from stratagem._src.launcher.supervised_process import SupervisedProcess
from stratagem._src.transport.secret import FILE_VARIABLE, SECRET_VARIABLE

__all__ = ["RayNode"]

_CHUNK = 64 * 1024


class RayNode:
    """Runs a node of a job in its own process, which ends with the actor."""

    def run(
        self, command: Sequence[str], secret: str, folder: str, path: Sequence[str]
    ) -> Iterator[tuple[bytes, bool]]:
        """Yields chunks of the node's output, and whether each is error output, until the node exits.

        Args:
            command: The arguments of this actor's Python interpreter.
            secret: The secret with which the node joins.
            folder: The working directory, if it exists on this machine.
            path: The launcher's module search path.
        """
        environment = {**os.environ, SECRET_VARIABLE: secret, "PYTHONPATH": os.pathsep.join(path)}
        environment.pop(FILE_VARIABLE, None)
        if os.path.isdir(folder):
            os.chdir(folder)
        process = SupervisedProcess([sys.executable, *command], environment)
        try:
            with selectors.DefaultSelector() as selector:
                for file in (process.stdout, process.stderr, process.control):
                    selector.register(file, selectors.EVENT_READ)
                is_over = False
                while not is_over:
                    for key, _ in selector.select():
                        if key.fileobj is process.control:
                            is_over = process.read_control()
                        elif chunk := _read(key.fd):
                            yield chunk, key.fd == process.stderr
                        else:
                            selector.unregister(key.fd)
            for file in (process.stdout, process.stderr):
                while chunk := _read(file):
                    yield chunk, file == process.stderr
        finally:
            process.stop(signal.SIGKILL, 0.0)
            process.close()


def _read(file: int) -> bytes:
    try:
        return os.read(file, _CHUNK)
    except BlockingIOError:
        return b""
