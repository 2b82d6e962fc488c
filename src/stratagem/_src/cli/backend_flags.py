"""``BackendFlags``: the flags that only one back end of ``stratagem run`` takes."""

from __future__ import annotations

import argparse
from typing import Any

from stratagem._src.cluster.errors import LaunchError

__all__ = ["BackendFlags"]


class BackendFlags:
    """The flags that only one back end takes; what was not given is not in the namespace.

    >>> import argparse
    >>> from stratagem._src.cli.backend_flags import BackendFlags
    >>> parser = argparse.ArgumentParser()
    >>> flags = BackendFlags(parser, "hosts", "across nodes", "one command for each node")
    >>> flags.add("--nnodes", type=int)
    >>> flags.given(parser.parse_args(["--nnodes", "2"]))
    {'nnodes': 2}

    Args:
        parser: Where they are added.
        backend: What ``--on`` calls the back end.
        title: The heading of the flags in the help.
        description: What the help says of all of them.
    """

    def __init__(
        self, parser: argparse.ArgumentParser, backend: str, title: str, description: str
    ) -> None:
        self.backend = backend
        self._group = parser.add_argument_group(f"{title} (--on {backend})", description)
        self._flags: dict[str, str] = {}

    def add(self, flag: str, **options: Any) -> None:
        """Adds a flag, as ``argparse`` takes it."""
        action = self._group.add_argument(flag, default=argparse.SUPPRESS, **options)
        self._flags[action.dest] = flag

    def share(self, other: BackendFlags, flag: str) -> None:
        """Takes a flag that another back end has added."""
        self._flags |= {name: known for name, known in other._flags.items() if known == flag}

    def given(self, options: argparse.Namespace) -> dict[str, Any]:
        """Returns the values of the flags that were given, by name."""
        return {name: getattr(options, name) for name in self._flags if hasattr(options, name)}

    def refuse(self, options: argparse.Namespace, chosen: BackendFlags) -> None:
        """Raises ``LaunchError`` if a flag was given that the back end that was chosen does not take."""
        for name in self.given(options):
            if name in chosen._flags:
                continue
            raise LaunchError(
                f"{self._flags[name]} must be left out with --on {options.on}: only "
                f"--on {self.backend} takes it."
            )
