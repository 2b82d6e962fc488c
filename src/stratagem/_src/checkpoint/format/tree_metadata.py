"""The file ``_METADATA``: the structure of a checkpoint in the Orbax format, with our checksum."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from google_crc32c import value as crc32c

from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath
from stratagem._src.core.errors import DataLossError, InvalidArgumentError

__all__ = [
    "METADATA_FILE",
    "STEP_METADATA_FILE",
    "Key",
    "Leaf",
    "TreeMetadata",
    "array_key",
    "store_named_in",
]

METADATA_FILE = "_METADATA"
STEP_METADATA_FILE = "_CHECKPOINT_METADATA"
ARRAY, NUMBER = "np.ndarray", "scalar"

_VERSION = 3
_OURS = "stratagem"
_CHECKSUM = "crc32c"
_STORE = "store"
_SEQUENCE, _DICT = 1, 2
_STORED = (ARRAY, NUMBER, "jax.Array", "jax_random_key")


class Key(NamedTuple):
    """One entry of the path to a leaf.

    Attributes:
        text: A dictionary key, or an index.
        is_index: Whether it is an index of a sequence.
    """

    text: str
    is_index: bool = False


class Leaf(NamedTuple):
    """One array of a checkpoint.

    Attributes:
        keys: Its path in the structure.
        kind: Its type in Orbax's terms; ``NUMBER`` for a Python number.
    """

    keys: tuple[Key, ...]
    kind: str = ARRAY

    @property
    def name(self) -> str:
        """Its path, with slashes."""
        return "/".join(key.text for key in self.keys)


def array_key(keys: Iterable[Key]) -> str:
    """Returns the key of an array in the key-value store, from its path."""
    return ".".join(key.text for key in keys)


class TreeMetadata(NamedTuple):
    """The structure of a checkpoint.

    Attributes:
        leaves: Its arrays.
        own: Our own metadata; ``None`` if another program wrote the checkpoint.
        zarr3: Whether its arrays are in Zarr version 3.
        in_store: Whether they are in one key-value store.
    """

    leaves: tuple[Leaf, ...]
    own: Mapping[str, Any] | None = None
    zarr3: bool = True
    in_store: bool = True

    @property
    def store(self) -> str:
        """The directory of the arrays below the checkpoint's; empty if they are in it."""
        return str((self.own or {}).get(_STORE, ""))

    def in_directory(self, store: str) -> TreeMetadata:
        """Returns the metadata for arrays in another directory."""
        return self._replace(own={**(self.own or {}), _STORE: store}) if store else self

    def encode(self) -> bytes:
        """Returns the content of the file."""
        sequences = _complete_sequences(leaf.keys for leaf in self.leaves)
        tree = {}
        for keys, kind in self.leaves:
            path = tuple(key.text for key in keys)
            types = [
                _SEQUENCE if path[:depth] in sequences else _DICT for depth in range(len(path))
            ]
            tree[str(path)] = {
                "key_metadata": [
                    {"key": key, "key_type": kind} for key, kind in zip(path, types, strict=True)
                ],
                "value_metadata": {"value_type": kind, "skip_deserialize": False},
            }
        own = {**(self.own or {}), "version": _VERSION}
        contents = {
            "tree_metadata": tree,
            "use_ocdbt": self.in_store,
            "use_zarr3": self.zarr3,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": {_OURS: own},
        }
        own[_CHECKSUM] = int(crc32c(_canonical(contents)))
        return json.dumps(contents).encode("ascii")

    @classmethod
    def decode(cls, data: bytes, path: CheckpointPath) -> TreeMetadata:
        """Decodes the content of the file.

        Args:
            data: The content.
            path: The file, for messages.

        Raises:
            DataLossError: If it is corrupt.
            InvalidArgumentError: If it is valid, but of a later version.
        """
        try:
            contents = json.loads(data)
            custom = contents.get("custom_metadata") or {}
            own = custom.get(_OURS) if isinstance(custom, dict) else None
            if own is not None:
                noted = own.pop(_CHECKSUM)
                found = int(crc32c(_canonical(contents)))
                if noted != found:
                    raise ValueError(f"its CRC-32C is {found}, and was {noted} when it was saved")
                if own.pop("version") != _VERSION:
                    raise InvalidArgumentError(
                        f"The checkpoint's {path} was written by a later version of stratagem. This one "
                        f"reads format {_VERSION}. Update stratagem."
                    )
                if "/" in str(own.get(_STORE, "")):
                    raise ValueError(f"its arrays are outside of it, in {own[_STORE]!r}")
            leaves = tuple(_leaves(contents["tree_metadata"]))
            in_store = contents.get("use_ocdbt")
            if in_store is None:
                in_store = (path.parent / "manifest.ocdbt").exists()
            return cls(leaves, own, bool(contents.get("use_zarr3")), bool(in_store))
        except InvalidArgumentError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataLossError(f"The checkpoint's {path} is corrupt: {error}.") from error


def store_named_in(data: bytes) -> str | None:
    """Returns the directory of the arrays that the content of the file names."""
    custom = json.loads(data).get("custom_metadata") or {}
    found = (custom.get(_OURS) or {}).get(_STORE)
    return None if found is None else str(found)


def _leaves(tree: Mapping[str, Any]) -> Iterable[Leaf]:
    for entry in tree.values():
        value = entry["value_metadata"]
        # Entries without an array, such as an empty dictionary or a string, are not restored.
        if not value["skip_deserialize"] and value["value_type"] in _STORED:
            keys = tuple(
                Key(str(key["key"]), key["key_type"] == _SEQUENCE) for key in entry["key_metadata"]
            )
            yield Leaf(keys, value["value_type"])


def _complete_sequences(paths: Iterable[tuple[Key, ...]]) -> set[tuple[str, ...]]:
    """Returns the paths of sequences without gaps; Orbax cannot rebuild others."""
    children: dict[tuple[str, ...], set[Key]] = collections.defaultdict(set)
    for keys in paths:
        for depth, key in enumerate(keys):
            children[tuple(k.text for k in keys[:depth])].add(key)
    return {
        place
        for place, keys in children.items()
        if all(key.is_index for key in keys)
        and {key.text for key in keys} == {str(index) for index in range(len(keys))}
    }


def _canonical(contents: Any) -> bytes:
    return json.dumps(contents, sort_keys=True, separators=(",", ":")).encode("ascii")
