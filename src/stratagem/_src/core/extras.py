"""``install_command`` and ``install_hint``: how to install the libraries of an extra."""

from __future__ import annotations

import importlib.metadata
import shlex

__all__ = ["install_command", "install_hint"]


def install_command(extra: str) -> str:
    """Returns a command that installs what an extra needs, from a clone as well as from an index.

    It names the libraries themselves: ``stratagem[extra]`` would ask the index for Stratagem, which a
    clone does not come from.

    >>> from stratagem._src.core.extras import install_command
    >>> install_command("files")
    "pip install 'fsspec>=2024.2'"

    Args:
        extra: Name of an extra in ``pyproject.toml``.
    """
    needed = [requirement for requirement in _requirements() if _is_of(requirement, extra)]
    libraries = [requirement.partition(";")[0].strip() for requirement in needed]
    return shlex.join(["pip", "install", *(libraries or [f"stratagem[{extra}]"])])


def install_hint(extra: str) -> str:
    """Returns the sentence of an error that says how to install an extra.

    >>> from stratagem._src.core.extras import install_hint
    >>> install_hint("files")
    "Run pip install 'fsspec>=2024.2' (the extra stratagem[files])."

    Args:
        extra: Name of an extra in ``pyproject.toml``.
    """
    return f"Run {install_command(extra)} (the extra stratagem[{extra}])."


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires("stratagem") or []
    except importlib.metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return []


def _is_of(requirement: str, extra: str) -> bool:
    _, _, condition = requirement.partition(";")
    return condition.replace("'", '"').strip() == f'extra == "{extra}"'
