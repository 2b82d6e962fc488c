"""``tf.io.gfile``: local files through Python's functions, remote files through fsspec.

fsspec supports ``gs://``, ``s3://``, ``hdfs://``, ``memory://`` and more; each needs its own library.
fsspec is imported on the first use of such a path.
"""

from __future__ import annotations

import contextlib
import glob as python_glob
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from stratagem._src.core.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    MissingExtraError,
    NotFoundError,
)
from stratagem._src.core.extras import install_hint
from stratagem._src.core.types import PathLike

__all__ = [
    "FileStatistics",
    "GFile",
    "copy",
    "exists",
    "get_registered_schemes",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "text_path",
    "walk",
]


def text_path(path: PathLike) -> str:
    """Converts a path (text, bytes, ``PathLike`` or an array of one string) to text."""
    if isinstance(path, np.ndarray) and path.ndim == 0:
        path = path.item()
    try:
        return os.fsdecode(path)
    except TypeError:
        raise TypeError(f"A path must be a string, bytes or a PathLike, got {path!r}.") from None


def _remote(path: str) -> Any:
    """Returns the fsspec file system of a path with a scheme, or ``None`` for a local path."""
    scheme, found, _ = path.partition("://")
    if not found or scheme == "file":
        return None
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError(
            f"{scheme}:// paths need fsspec, which is not installed. {install_hint('files')}"
        ) from None
    try:
        return fsspec.filesystem(scheme)
    except (ImportError, ValueError) as error:
        raise InvalidArgumentError(f"fsspec cannot open {path!r}: {error}.") from None


def _local(path: str) -> str:
    return path.removeprefix("file://")


@contextlib.contextmanager
def _named_errors(path: str) -> Iterator[None]:
    """Translates OSErrors to TensorFlow's errors."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no such file or directory.") from error
    except FileExistsError as error:
        raise AlreadyExistsError(f"{path} exists already.") from error


class FileStatistics(NamedTuple):
    """The length in bytes, modification time in nanoseconds, and whether it is a directory.

    >>> FileStatistics(3, 0, False).length
    3
    """

    length: int
    mtime_nsec: int
    is_directory: bool


class GFile:
    """A local file, or a remote one through fsspec; opened on first use.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "notes.txt")
    >>> with GFile(path, "w") as file:
    ...     _ = file.write("two\\nlines\\n")
    >>> [line for line in GFile(path)]
    ['two\\n', 'lines\\n']

    Args:
        name: The path.
        mode: As in ``open``: ``r``, ``w`` or ``a``, with ``b`` for bytes and ``+`` for reading and writing.
    """

    def __init__(self, name: PathLike, mode: str = "r") -> None:
        if mode.replace("b", "") not in ("r", "w", "a", "r+", "w+", "a+"):
            raise InvalidArgumentError(
                f"mode of GFile must be r, w or a, optionally with b and +, got {mode!r}."
            )
        self._name = text_path(name)
        self._mode = mode
        self._file: Any = None
        if mode[0] != "r":
            self._opened()  # as in TensorFlow, a path that is not writable fails in the constructor

    @property
    def name(self) -> str:
        """The path."""
        return self._name

    @property
    def mode(self) -> str:
        """The mode."""
        return self._mode

    def _opened(self) -> Any:
        if self._file is None:
            system = _remote(self._name)
            with _named_errors(self._name):
                open_it: Callable[..., Any] = open if system is None else system.open
                options = {} if "b" in self._mode else {"encoding": "utf-8", "newline": ""}
                self._file = open_it(_local(self._name), self._mode, **options)
        return self._file

    def read(self, n: int = -1) -> Any:
        """Returns the rest of the file, or ``n`` characters or bytes of it."""
        return self._opened().read(n)

    def readline(self) -> Any:
        """Returns the next line including its newline; empty at the end of the file."""
        return self._opened().readline()

    def readlines(self) -> list[Any]:
        """Returns the remaining lines."""
        return list(self._opened().readlines())

    def write(self, file_content: str | bytes) -> None:
        """Writes text, or bytes; text to a file of bytes as UTF-8."""
        if "b" in self._mode and isinstance(file_content, str):
            file_content = file_content.encode()
        self._opened().write(file_content)

    def seek(self, offset: int | None = None, whence: int = 0, position: int | None = None) -> None:
        """Moves to an offset from the start, from here (``whence=1``) or from the end (``whence=2``)."""
        place = offset if offset is not None else position
        if place is None:
            raise TypeError("GFile.seek needs an offset.")
        self._opened().seek(place, whence)

    def tell(self) -> int:
        """Returns the position in the file."""
        return int(self._opened().tell())

    def seekable(self) -> bool:
        """Returns ``True``."""
        return True

    def size(self) -> int:
        """Returns the length in bytes."""
        self.flush()
        return stat(self._name).length

    def flush(self) -> None:
        """Flushes written data to the file system."""
        if self._file is not None and self._mode != "r" and self._mode != "rb":
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        # Programs for TensorFlow often do not close it.
        if getattr(self, "_file", None) is not None:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        line = self.readline()
        if not line:
            raise StopIteration
        return line


def exists(path: PathLike) -> bool:
    """Returns whether a file or directory exists.

    >>> exists("/nowhere")
    False
    """
    name = text_path(path)
    system = _remote(name)
    return os.path.exists(_local(name)) if system is None else bool(system.exists(name))


def isdir(path: PathLike) -> bool:
    """Returns whether a path is a directory.

    >>> isdir("/")
    True
    """
    name = text_path(path)
    system = _remote(name)
    return os.path.isdir(_local(name)) if system is None else bool(system.isdir(name))


def stat(path: PathLike) -> FileStatistics:
    """Returns the length, modification time and kind of a file or directory.

    >>> stat("/").is_directory
    True
    """
    name = text_path(path)
    system = _remote(name)
    with _named_errors(name):
        if system is None:
            found = os.stat(_local(name))
            is_directory = os.path.isdir(_local(name))
            return FileStatistics(found.st_size, found.st_mtime_ns, is_directory)
        about = system.info(name)
        try:
            changed = int(system.modified(name).timestamp() * 1e9)
        except (NotImplementedError, FileNotFoundError):
            changed = 0
        return FileStatistics(about.get("size") or 0, changed, about["type"] == "directory")


def glob(pattern: PathLike | Sequence[PathLike]) -> list[str]:
    """Returns the paths that match a pattern, or one of a list of patterns.

    >>> glob("/nowhere*")
    []
    """
    patterns = pattern if isinstance(pattern, (list, tuple)) else [pattern]
    found: list[str] = []
    for name in map(text_path, patterns):
        system = _remote(name)
        if system is None:
            found += sorted(python_glob.glob(_local(name)))
        else:
            found += [system.unstrip_protocol(one) for one in sorted(system.glob(name))]
    return found


def listdir(path: PathLike) -> list[str]:
    """Returns the names in a directory.

    >>> listdir("/nowhere")
    Traceback (most recent call last):
    ...
    stratagem.errors.NotFoundError: /nowhere: no such directory.
    """
    name = text_path(path)
    if not isdir(name):
        raise NotFoundError(f"{name}: no such directory.")
    system = _remote(name)
    if system is None:
        return os.listdir(_local(name))
    return [one.rstrip("/").rpartition("/")[2] for one in system.ls(name, detail=False)]


def mkdir(path: PathLike) -> None:
    """Creates a directory unless it exists; its parent must exist.

    >>> mkdir("/")
    """
    name = text_path(path)
    if isdir(name):
        return
    system = _remote(name)
    with _named_errors(name):
        if system is None:
            os.mkdir(_local(name))
        else:
            system.mkdir(name, create_parents=False)


def makedirs(path: PathLike) -> None:
    """Creates a directory and its parents unless they exist.

    >>> makedirs("/")
    """
    name = text_path(path)
    system = _remote(name)
    with _named_errors(name):
        if system is None:
            os.makedirs(_local(name), exist_ok=True)
        else:
            system.makedirs(name, exist_ok=True)


def remove(path: PathLike) -> None:
    """Deletes a file.

    >>> remove("/nowhere")
    Traceback (most recent call last):
    ...
    stratagem.errors.NotFoundError: /nowhere: no such file or directory.
    """
    name = text_path(path)
    system = _remote(name)
    with _named_errors(name):
        if system is None:
            os.remove(_local(name))
        else:
            system.rm_file(name)


def rmtree(path: PathLike) -> None:
    """Deletes a directory and its contents.

    >>> rmtree("/nowhere")
    Traceback (most recent call last):
    ...
    stratagem.errors.NotFoundError: /nowhere: no such file or directory.
    """
    name = text_path(path)
    system = _remote(name)
    with _named_errors(name):
        if system is None:
            shutil.rmtree(_local(name))
        else:
            system.rm(name, recursive=True)


def rename(src: PathLike, dst: PathLike, overwrite: bool = False) -> None:
    """Renames a file or directory.

    >>> rename("/nowhere", "/elsewhere")
    Traceback (most recent call last):
    ...
    stratagem.errors.NotFoundError: /nowhere: no such file or directory.
    """
    source, target = _paths(src, dst, overwrite)
    system, other = _remote(source), _remote(target)
    if type(system) is not type(other):
        raise InvalidArgumentError(
            f"rename works within one file system, got {source!r} and {target!r}. Use copy and remove."
        )
    with _named_errors(source):
        if system is None:
            os.replace(_local(source), _local(target))
        else:
            system.mv(source, target, recursive=True)


def copy(src: PathLike, dst: PathLike, overwrite: bool = False) -> None:
    """Copies a file, also between file systems.

    >>> copy("/nowhere", "/elsewhere")
    Traceback (most recent call last):
    ...
    stratagem.errors.NotFoundError: /nowhere: no such file or directory.
    """
    source, target = _paths(src, dst, overwrite)
    with GFile(source, "rb") as reading:
        reading.read(0)  # a missing source must not leave an empty target
        with GFile(target, "wb") as writing:
            while part := reading.read(1 << 20):
                writing.write(part)


def _paths(src: PathLike, dst: PathLike, overwrite: bool) -> tuple[str, str]:
    source, target = text_path(src), text_path(dst)
    if not overwrite and exists(target):
        raise AlreadyExistsError(f"{target} exists already. Pass overwrite=True to replace it.")
    return source, target


def walk(
    top: PathLike, topdown: bool = True, onerror: Callable[[Any], Any] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields ``top`` and each directory below it, with the names of its directories and files.

    >>> list(walk("/nowhere"))
    []
    """
    name = text_path(top)
    try:
        names = sorted(listdir(name))
    except NotFoundError as error:
        if onerror is not None:
            onerror(error)
        return
    folders = [one for one in names if isdir(join(name, one))]
    here = (name, folders, [one for one in names if one not in folders])
    if topdown:
        yield here
    for folder in folders:
        yield from walk(join(name, folder), topdown, onerror)
    if not topdown:
        yield here


def join(path: PathLike, *paths: PathLike) -> str:
    """Joins paths with slashes; an absolute path or one with a scheme discards those before it.

    >>> join("gs://bucket/data", "train", "0.png")
    'gs://bucket/data/train/0.png'
    """
    joined = text_path(path)
    for part in map(text_path, paths):
        joined = part if "://" in part else os.path.join(joined, part)
    return joined


def get_registered_schemes() -> list[str]:
    """Returns the schemes of paths: empty for local paths, and those of fsspec.

    >>> "" in get_registered_schemes()
    True
    """
    try:
        import fsspec
    except ImportError:
        return ["", "file"]
    return ["", *sorted(fsspec.available_protocols())]
