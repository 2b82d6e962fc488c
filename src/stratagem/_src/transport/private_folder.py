"""``make_private_folder``: a folder for what only its owner may read."""

from __future__ import annotations

from pathlib import Path

__all__ = ["make_private_folder"]


def make_private_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, for this user only; leaves what is there.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from stratagem._src.transport.private_folder import make_private_folder
    >>> with tempfile.TemporaryDirectory() as name:
    ...     make_private_folder(Path(name) / "state" / "mine")
    ...     oct((Path(name) / "state").stat().st_mode)[-3:]
    '700'
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    # mkdir(parents=True) would give its mode to the last one alone.
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
