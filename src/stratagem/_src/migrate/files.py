"""Files for ``stratagem migrate``: found, read, compared and written."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stratagem._src.core.errors import InvalidArgumentError, MissingExtraError
from stratagem._src.migrate.findings import Migration

__all__ = ["MigratedFile", "find_programs", "migrate_file", "write"]

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


@dataclass(frozen=True)
class MigratedFile:
    """A file and what becomes of it."""

    path: Path
    migration: Migration

    def diff(self) -> Iterator[str]:
        """Yields the lines of a unified diff, which ``patch`` can apply."""
        name = self.path.as_posix()
        # By "\n" alone: a form feed in a line does not end it.
        before, after = (
            io.StringIO(text).readlines() for text in (self.migration.before, self.migration.after)
        )
        for line in difflib.unified_diff(before, after, name, name):
            yield line.removesuffix("\n")
            if not line.endswith("\n"):
                yield "\\ No newline at end of file"


def find_programs(paths: Iterable[Path]) -> list[Path]:
    """Returns files as they are, and the ``*.py`` files in directories, each once.

    Raises:
        InvalidArgumentError: If a path does not exist.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            for one in sorted(path.rglob("*.py")):
                inner = one.relative_to(path).parts
                if one.is_file() and not any(p.startswith(".") or p in _SKIPPED for p in inner):
                    found[one] = None
        elif path.is_file():
            found[path] = None
        else:
            raise InvalidArgumentError(f"FILE must be a file or a directory, got {path}.")
    return list(found)


def migrate_file(path: Path) -> MigratedFile:
    """Returns a file as it would be after migration.

    Raises:
        InvalidArgumentError: If it is not Python, with the line.
        MissingExtraError: If LibCST is not installed.
    """
    try:
        # Imported when used: LibCST is an extra.
        from libcst import ParserSyntaxError

        from stratagem._src.migrate.codemod import migrate_source
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "libcst":
            raise
        raise MissingExtraError(
            "stratagem migrate needs LibCST, which is not installed. Run pip install "
            "'stratagem[migrate]'."
        ) from None
    try:
        return MigratedFile(path, migrate_source(path.read_bytes()))
    except ParserSyntaxError as error:
        raise InvalidArgumentError(
            f"{path}:{error.raw_line}: a file to migrate must be valid Python, got a syntax error at "
            f"column {error.raw_column + 1}. Correct it first; no file was changed."
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{path}: a file to migrate must be in the encoding that it declares, got {error}."
        ) from None


def write(file: MigratedFile) -> None:
    """Replaces a file by its new text at once, with the same permissions.

    A link stays a link; what it points to is replaced.
    """
    target = file.path.resolve()
    content = file.migration.after.encode(file.migration.encoding)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, target.stat().st_mode & 0o7777)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
