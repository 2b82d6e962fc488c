"""``list_files``: the names of files that match glob patterns."""

from __future__ import annotations

import glob
from typing import Any

from stratagem._src.core.errors import NotFoundError
from stratagem._src.data.compressed_files import as_path
from stratagem._src.data.sources.tensors import TensorSlices

__all__ = ["matching_files"]


def matching_files(patterns: Any) -> TensorSlices:
    """Returns a source of the sorted file names that match any of the patterns.

    Raises:
        NotFoundError: If nothing matches.
    """
    if hasattr(patterns, "tolist"):
        patterns = patterns.tolist()
    listed = patterns if isinstance(patterns, list | tuple) else [patterns]
    texts = [as_path(pattern) for pattern in listed]
    names = sorted({name for text in texts for name in glob.glob(text)})
    if not names:
        raise NotFoundError(f"No files match {', '.join(texts) or 'an empty list of patterns'}.")
    return TensorSlices(names)
