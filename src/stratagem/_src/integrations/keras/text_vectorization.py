"""``TextVectorization`` without TensorFlow, with the results of Keras."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError
from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.host_layer import HostLayer, batches_of, text_of
from stratagem._src.integrations.keras.keras_internals import Argument
from stratagem._src.integrations.keras.lookup_layers import StringLookup

__all__ = ["TextVectorization"]

_PUNCTUATION = re.compile(r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']')
_LOWER = ("lower", "lower_and_strip_punctuation")
_STRIP = ("strip_punctuation", "lower_and_strip_punctuation")


class TextVectorization(HostLayer):
    """Splits texts into tokens, and maps these to indices; see ``keras.layers.TextVectorization``.

    Args:
        max_tokens: The maximum size of the vocabulary.
        standardize: ``"lower_and_strip_punctuation"``, ``"lower"``, ``"strip_punctuation"``, a function
            of an array of strings, or ``None``.
        split: ``"whitespace"``, ``"character"`` or ``None``.
        ngrams: The lengths of n-grams, or the maximum length.
        output_mode: ``"int"``, ``"multi_hot"``, ``"count"`` or ``"tf_idf"``.
        output_sequence_length: The number of indices of each text, padded with 0 or cut.
        pad_to_max_tokens: Whether encoded outputs have ``max_tokens`` columns.
        vocabulary: The tokens, or a file with one token in each line.
        idf_weights: The weights of the vocabulary for ``output_mode="tf_idf"``.
        **kwargs: As for ``keras.Layer``.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | Callable[..., Any] | None = "lower_and_strip_punctuation",
        split: str | None = "whitespace",
        ngrams: int | Sequence[int] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Any = None,
        idf_weights: Sequence[float] | None = None,
        **kwargs: Argument,
    ) -> None:
        for name in ("sparse", "ragged"):
            if kwargs.pop(name, False):
                raise UnsupportedError(f"{name}=True needs TensorFlow. Leave it out.")
        kwargs.pop("encoding", None)
        super().__init__(**kwargs)
        if split not in ("whitespace", "character", None):
            raise InvalidArgumentError(
                f"split must be 'whitespace', 'character' or None, got {split!r}."
            )
        self.standardize = standardize
        self.split = split
        self.ngrams = ngrams
        self.output_mode = output_mode
        self.output_sequence_length = output_sequence_length
        self._lookup = StringLookup(
            max_tokens,
            mask_token="" if output_mode == "int" else None,
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            output_mode=output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
        )

    def adapt(self, data: PyTree, batch_size: int | None = None, steps: int | None = None) -> None:
        """Sets the vocabulary to the tokens of texts, the most frequent ones first."""
        counts: collections.Counter[Any] = collections.Counter()
        documents: collections.Counter[Any] = collections.Counter()
        num_documents = 0
        for number, batch in enumerate(batches_of(data)):
            if steps is not None and number >= steps:
                break
            for tokens in self._tokens(batch):
                counts.update(tokens)
                documents.update(set(tokens))
                num_documents += 1
        self._lookup.learn(counts, documents, num_documents)

    def set_vocabulary(self, vocabulary: PyTree, idf_weights: PyTree = None) -> None:
        """Sets the vocabulary."""
        self._lookup.set_vocabulary(vocabulary, idf_weights)

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Returns the vocabulary, in the order of indices."""
        return self._lookup.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """Returns the number of indices."""
        return self._lookup.vocabulary_size()

    def call(self, inputs: np.ndarray[Any, Any]) -> Any:
        """Returns the indices of the tokens of each text, encoded by ``output_mode``."""
        rows = self._tokens(inputs)
        if self.output_mode == "int":
            length = self.output_sequence_length or max(map(len, rows), default=0)
            padded = [(row + [""] * length)[:length] for row in rows]
            tokens = np.array(padded, object).reshape(len(rows), length)
            indices = self._lookup.call(tokens)
            return indices[0] if inputs.ndim == 0 else indices
        encoded = [self._lookup.call(np.array(row, object)) for row in rows]
        return encoded[0] if inputs.ndim == 0 else np.stack(encoded)

    def _tokens(self, inputs: np.ndarray[Any, Any]) -> list[list[str]]:
        if inputs.ndim > 1 and inputs.shape[-1] != 1 and self.split is not None:
            raise InvalidArgumentError(
                "TextVectorization takes a vector of texts, or one text in each row, got an array of shape "
                f"{inputs.shape}."
            )
        rows = inputs.reshape(len(inputs), -1) if inputs.ndim else inputs.reshape(1, 1)
        if callable(self.standardize):
            rows = np.asarray(self.standardize(np.array(_texts(rows)))).reshape(rows.shape)
        return [self._grams(self._split_texts(row)) for row in _texts(rows)]

    def _split_texts(self, texts: list[str]) -> list[str]:
        if self.standardize in _LOWER:
            texts = [text.lower() for text in texts]
        if self.standardize in _STRIP:
            texts = [_PUNCTUATION.sub("", text) for text in texts]
        if self.split is None:
            return texts
        return texts[0].split() if self.split == "whitespace" else list(texts[0])

    def _grams(self, tokens: list[str]) -> list[str]:
        if self.ngrams is None:
            return tokens
        sizes = range(1, self.ngrams + 1) if isinstance(self.ngrams, int) else self.ngrams
        return [
            " ".join(tokens[start : start + size])
            for size in sizes
            for start in range(len(tokens) - size + 1)
        ]

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Any:
        """Returns the shape of results."""
        rows = input_shape[0] if input_shape else None
        if self.output_mode == "int":
            return rows, self.output_sequence_length
        return self._lookup.compute_output_shape((rows, 1))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, with the current vocabulary."""
        names = ("standardize", "split", "ngrams", "output_mode", "output_sequence_length")
        inner = self._lookup.get_config()
        kept = ("max_tokens", "pad_to_max_tokens", "vocabulary", "idf_weights")
        config = {**super().get_config(), **{name: getattr(self, name) for name in names}}
        return {**config, **{name: inner[name] for name in kept if name in inner}}


def _texts(rows: np.ndarray[Any, Any]) -> list[list[str]]:
    return [[text_of(text) for text in row] for row in rows.tolist()]
