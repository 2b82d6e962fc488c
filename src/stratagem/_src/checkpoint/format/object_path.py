"""``ObjectPath``: a path in an object store, ``gs://bucket/key`` or ``s3://bucket/key``.

It has the methods of ``pathlib.Path`` that checkpoints use, on TensorStore's key-value stores: one library,
with one set of credentials and one retry policy, reads and writes both arrays and small objects.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from stratagem._src.checkpoint.format.tensorstore_loader import short_message, tensorstore
from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["DRIVERS", "RETRIES", "ObjectPath"]

DRIVERS = {"gs": "gcs", "s3": "s3"}
"""TensorStore's driver for each scheme."""

_RETRIES = {"max_retries": 10, "initial_delay": "500ms", "max_delay": "16s"}
RETRIES = {f"{driver}_request_retries": _RETRIES for driver in DRIVERS.values()}
"""TensorStore's options for throttled requests and lost connections: it gives up after two minutes."""

_ABSENT = b"\x02"  # TensorStore's generation of an object that does not exist
_CONDITION_FAILED = b""
_DEFAULT_REGION = "us-east-1"


@functools.total_ordering
class ObjectPath:
    """A path in a bucket. Object stores have no directories: one "exists" while objects are below it.

    Args:
        scheme: ``gs`` or ``s3``.
        bucket: The bucket.
        key: The key, without slashes at its ends.

    >>> from stratagem._src.checkpoint.format.object_path import ObjectPath
    >>> path = ObjectPath.parse("gs://bucket/runs/7/ckpt")
    >>> str(path.with_name("ckpt-1") / "_METADATA"), path.parent.name
    ('gs://bucket/runs/7/ckpt-1/_METADATA', '7')
    """

    def __init__(self, scheme: str, bucket: str, key: str) -> None:
        self._scheme, self._bucket, self._key = scheme, bucket, key

    @classmethod
    def parse(cls, text: str) -> ObjectPath:
        """Returns the path of a URL.

        Raises:
            InvalidArgumentError: If it has no bucket.
        """
        scheme, _, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        if not bucket:
            raise InvalidArgumentError(
                f"A path in an object store is {scheme}://bucket/key, got {text!r} without a bucket."
            )
        return cls(scheme, bucket, "/".join(part for part in key.split("/") if part))

    # --- names --------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self._scheme}://{self._bucket}/{self._key}"

    def __repr__(self) -> str:
        return f"ObjectPath.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, ObjectPath) else NotImplemented

    def __lt__(self, other: ObjectPath) -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self._scheme, self._bucket, f"{self._key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self._key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The path without its last part."""
        return ObjectPath(self._scheme, self._bucket, self._key.rpartition("/")[0])

    def with_name(self, name: str) -> ObjectPath:
        """Returns the path with another last part."""
        return self.parent / name

    def absolute(self) -> ObjectPath:
        """Returns the path itself."""
        return self

    # --- objects ------------------------------------------------------------------------------------

    def read_bytes(self) -> bytes:
        """Returns the content of the object.

        Raises:
            FileNotFoundError: If there is none.
            OSError: If the store does not answer.
        """
        found = self._result("read", self._store().read(self._key))
        if found.state != "value":
            raise FileNotFoundError(f"There is no object {self}.")
        return bytes(found.value)

    def write_bytes(self, data: bytes) -> None:
        """Writes the object; readers see the old content or the new."""
        self._result("write", self._store().write(self._key, data))

    def create(self, data: bytes) -> bool:
        """Writes the object unless it exists; of several processes, one succeeds.

        Returns:
            Whether the object has this content now. A lost answer makes TensorStore try again, so it can
            find its own object.
        """
        written = self._store().write(self._key, data, if_equal=_ABSENT)
        if self._result("write", written).generation != _CONDITION_FAILED:
            return True
        return self.read_bytes() == data

    def exists(self) -> bool:
        """Returns whether the object exists."""
        try:
            self.read_bytes()
        except FileNotFoundError:
            return False
        return True

    def unlink(self) -> None:
        """Removes the object, if it exists."""
        self._result("remove", self._store().write(self._key, None))

    def is_dir(self) -> bool:
        """Returns whether there are objects below the path."""
        return bool(self.names_below())

    def names_below(self) -> list[str]:
        """Returns the keys of all objects below the path, relative to it."""
        prefix = f"{self._key}/" if self._key else ""
        after = prefix[:-1] + chr(ord("/") + 1) if prefix else ""
        keys = tensorstore().KvStore.KeyRange(prefix, after)
        found = self._result("list", self._store().list(keys))
        names = [key.decode() for key in found]
        # Some servers ignore the range.
        return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yields the objects and "directories" directly below the path."""
        for name in dict.fromkeys(name.partition("/")[0] for name in self.names_below()):
            yield self / name

    def remove_all(self, last: str = "") -> None:
        """Removes all objects below the path; that of the name ``last`` after the others."""
        store = self._store()
        names = [name for name in self.names_below() if name != last]
        removals = [store.write((self / name)._key, None) for name in names]
        for removal in removals:
            self._result("remove", removal)
        if last:
            (self / last).unlink()

    def key_value_store(self) -> dict[str, Any]:
        """Returns TensorStore's specification of the objects below the path."""
        return {**self._specification(), "path": f"{self._key}/"}

    def _specification(self) -> dict[str, Any]:
        found: dict[str, Any] = {"driver": DRIVERS[self._scheme], "bucket": self._bucket}
        if self._scheme == "s3":
            # TensorStore does not read the endpoint that other S3 clients take from the environment.
            names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
            endpoint = next((os.environ[name] for name in names if os.environ.get(name)), None)
            if endpoint:
                regions = (os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
                region = next(filter(None, regions), _DEFAULT_REGION)
                found |= {"endpoint": endpoint, "aws_region": region}
        return found

    def _store(self) -> Any:
        ts = tensorstore()
        return ts.KvStore.open(self._specification(), context=ts.Context(RETRIES)).result()

    def _result(self, what: str, future: Any) -> Any:
        try:
            return future.result()
        except (ValueError, OSError) as error:
            raise OSError(f"Cannot {what} {self}: {short_message(error)}") from error
