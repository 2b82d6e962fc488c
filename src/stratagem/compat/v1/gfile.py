"""``tf.compat.v1.gfile``: the TensorFlow 1 names of ``tf.io.gfile``."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.gfile import GFile
from stratagem._src.tensorflow_api.gfile import GFile as FastGFile
from stratagem._src.tensorflow_api.gfile import GFile as Open
from stratagem._src.tensorflow_api.gfile import copy as Copy  # noqa: N812 (TensorFlow's names)
from stratagem._src.tensorflow_api.gfile import exists as Exists  # noqa: N812
from stratagem._src.tensorflow_api.gfile import glob as Glob  # noqa: N812
from stratagem._src.tensorflow_api.gfile import isdir as IsDirectory  # noqa: N812
from stratagem._src.tensorflow_api.gfile import listdir as ListDirectory  # noqa: N812
from stratagem._src.tensorflow_api.gfile import makedirs as MakeDirs  # noqa: N812
from stratagem._src.tensorflow_api.gfile import mkdir as MkDir  # noqa: N812
from stratagem._src.tensorflow_api.gfile import remove as Remove  # noqa: N812
from stratagem._src.tensorflow_api.gfile import rename as Rename  # noqa: N812
from stratagem._src.tensorflow_api.gfile import rmtree as DeleteRecursively  # noqa: N812
from stratagem._src.tensorflow_api.gfile import stat as Stat  # noqa: N812
from stratagem._src.tensorflow_api.gfile import walk as Walk  # noqa: N812

__all__ = [
    "Copy",
    "DeleteRecursively",
    "Exists",
    "FastGFile",
    "GFile",
    "Glob",
    "IsDirectory",
    "ListDirectory",
    "MakeDirs",
    "MkDir",
    "Open",
    "Remove",
    "Rename",
    "Stat",
    "Walk",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
