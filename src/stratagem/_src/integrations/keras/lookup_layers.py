"""``StringLookup``, ``IntegerLookup`` and ``Hashing`` without TensorFlow, with the results of Keras."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError
from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.host_layer import HostLayer, batches_of, encode, text_of
from stratagem._src.integrations.keras.keras_internals import Argument
from stratagem._src.tensorflow_api.fingerprint import fingerprint64

__all__ = ["Hashing", "IntegerLookup", "Lookup", "StringLookup"]


class Lookup(HostLayer):
    """Maps tokens to their index in a vocabulary, or indices to tokens.

    The first indices are those of the mask, if there is one, and of tokens that are not in the vocabulary.

    Args:
        max_tokens: The maximum size of the vocabulary, with mask and unknown tokens.
        num_oov_indices: The number of indices for unknown tokens.
        mask_token: The token with index 0.
        oov_token: What an index of an unknown token maps to, if ``invert``.
        vocabulary: The tokens, or a file with one token in each line.
        idf_weights: The weights of the vocabulary for ``output_mode="tf_idf"``.
        invert: Whether to map indices to tokens.
        output_mode: ``"int"``, ``"one_hot"``, ``"multi_hot"``, ``"count"`` or ``"tf_idf"``.
        pad_to_max_tokens: Whether encoded outputs have ``max_tokens`` columns.
        sparse: Must be ``False``.
        **kwargs: As for ``keras.Layer``.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: Any = None,
        oov_token: Any = None,
        vocabulary: Any = None,
        idf_weights: Sequence[float] | None = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        **kwargs: Argument,
    ) -> None:
        super().__init__(**kwargs)
        if sparse:
            raise UnsupportedError("sparse=True needs TensorFlow. Leave it out.")
        self.max_tokens = max_tokens
        self.num_oov_indices = num_oov_indices
        self.mask_token = mask_token
        self.oov_token = oov_token
        self.invert = invert
        self.output_mode = output_mode
        self.pad_to_max_tokens = pad_to_max_tokens
        self.idf_weights: Any = idf_weights
        self._tokens: tuple[Any, ...] = ()
        self._indices: dict[Any, int] = {}
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)

    def _key(self, token: object) -> Any:
        raise NotImplementedError

    def _bucket(self, token: Any) -> int:
        raise NotImplementedError

    # --- the vocabulary ---------------------------------------------------------------------------

    @property
    def _special_tokens(self) -> list[Any]:
        mask = [] if self.mask_token is None else [self._key(self.mask_token)]
        return [*mask, *[self.oov_token] * self.num_oov_indices]

    def set_vocabulary(self, vocabulary: PyTree, idf_weights: PyTree = None) -> None:
        """Sets the vocabulary, with or without the mask and unknown tokens at its beginning."""
        if isinstance(vocabulary, str):
            with open(vocabulary, encoding="utf-8") as file:
                vocabulary = file.read().splitlines()
        tokens = [self._key(token) for token in np.asarray(vocabulary, object).reshape(-1).tolist()]
        special = self._special_tokens
        if special and tokens[: len(special)] == special:
            tokens = tokens[len(special) :]
        repeated = [token for token, n in collections.Counter(tokens).items() if n > 1]
        if repeated:
            raise InvalidArgumentError(
                f"A vocabulary must contain each token once, got {repeated[0]!r} several times."
            )
        if self.max_tokens is not None and len(special) + len(tokens) > self.max_tokens:
            raise InvalidArgumentError(
                f"The vocabulary must have at most max_tokens={self.max_tokens} entries, got {len(tokens)} "
                f"and {len(special)} special ones."
            )
        self._tokens = tuple(tokens)
        self._indices = {token: len(special) + index for index, token in enumerate(tokens)}
        if idf_weights is not None:
            rest = np.asarray(idf_weights, np.float32)
            first = [0.0] * len(special) if len(rest) == len(tokens) else []
            # Keras gives unknown tokens the mean weight.
            mean = float(rest.mean()) if rest.size else 0.0
            oov = [mean if token == self.oov_token else 0.0 for token in special][: len(first)]
            self.idf_weights = np.concatenate([np.asarray(oov, np.float32), rest])

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Returns the vocabulary, in the order of indices."""
        return [*(self._special_tokens if include_special_tokens else ()), *self._tokens]

    def vocabulary_size(self) -> int:
        """Returns the number of indices."""
        return len(self._special_tokens) + len(self._tokens)

    def adapt(self, data: PyTree, batch_size: int | None = None, steps: int | None = None) -> None:
        """Sets the vocabulary to the tokens of an array or dataset, the most frequent ones first."""
        counts: collections.Counter[Any] = collections.Counter()
        documents: collections.Counter[Any] = collections.Counter()
        num_documents = 0
        for number, batch in enumerate(batches_of(data)):
            if steps is not None and number >= steps:
                break
            rows = batch.reshape(len(batch), -1) if batch.ndim else batch.reshape(1, 1)
            for row in rows.tolist():
                tokens = [self._key(token) for token in row]
                counts.update(tokens)
                documents.update(set(tokens))
                num_documents += 1
        self.learn(counts, documents, num_documents)

    def learn(
        self,
        counts: collections.Counter[Any],
        documents: collections.Counter[Any],
        num_documents: int,
    ) -> None:
        """Sets the vocabulary from the number of occurrences, and of documents, of each token."""
        special = set(self._special_tokens)
        known = [token for token in counts if token not in special]
        tokens = sorted(known, key=lambda token: (counts[token], token), reverse=True)
        if self.max_tokens is not None:
            tokens = tokens[: self.max_tokens - len(self._special_tokens)]
        weights = None
        if self.output_mode == "tf_idf":
            weights = [math.log(1 + num_documents / (1 + documents[token])) for token in tokens]
        self.set_vocabulary(tokens, weights)

    # --- looking up -------------------------------------------------------------------------------

    def call(self, inputs: np.ndarray[Any, Any]) -> Any:
        """Returns the indices of tokens, encoded by ``output_mode``; or tokens of indices."""
        items = inputs.reshape(-1).tolist()
        if self.invert:
            return self._tokens_at(items, inputs.shape)
        indices = np.array([self._index(self._key(item)) for item in items], np.int64)
        indices = indices.reshape(inputs.shape)
        if self.output_mode == "int":
            return indices
        shift = 0 if self.mask_token is None else 1  # the mask has no column of its own
        weights = None if self.output_mode != "tf_idf" else self.idf_weights[shift:]
        return encode(indices - shift, self.output_mode, self._depth(), weights)

    def _depth(self) -> int:
        size = self.max_tokens if self.pad_to_max_tokens else self.vocabulary_size()
        return (size or 0) - (0 if self.mask_token is None else 1)

    def _index(self, token: Any) -> int:
        found = self._indices.get(token)
        if found is not None:
            return found
        has_mask = self.mask_token is not None
        if has_mask and token == self._key(self.mask_token):
            return 0
        if self.num_oov_indices == 0:
            raise InvalidArgumentError(
                "When `num_oov_indices=0` all inputs should be in vocabulary, found OOV value "
                f"{token!r}, consider setting `num_oov_indices=1`."
            )
        return int(has_mask) + (self._bucket(token) if self.num_oov_indices > 1 else 0)

    def _tokens_at(self, indices: Iterable[int], shape: tuple[int, ...]) -> Any:
        vocabulary = self.get_vocabulary()
        found = [vocabulary[i] if 0 <= i < len(vocabulary) else self.oov_token for i in indices]
        return self._array(found).reshape(shape)

    def _array(self, tokens: list[Any]) -> np.ndarray[Any, Any]:
        return np.array(tokens)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Any:
        """Returns the shape of results."""
        if self.output_mode == "int":
            return tuple(input_shape)
        kept = input_shape if self.output_mode == "one_hot" else input_shape[:-1]
        if self.output_mode == "one_hot" and input_shape and input_shape[-1] == 1:
            kept = input_shape[:-1]
        return (*kept, self._depth())

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, with the current vocabulary."""
        names = (
            "max_tokens",
            "num_oov_indices",
            "mask_token",
            "oov_token",
            "invert",
            "output_mode",
            "pad_to_max_tokens",
        )
        config: dict[str, Any] = {**super().get_config(), **{n: getattr(self, n) for n in names}}
        config["vocabulary"] = list(self._tokens)
        if self.idf_weights is not None:
            config["idf_weights"] = [float(weight) for weight in self.idf_weights]
        return config


class StringLookup(Lookup):
    """Maps strings to indices, or indices to strings; see ``keras.layers.StringLookup``."""

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: Any = None,
        **kwargs: Argument,
    ) -> None:
        kwargs.pop("encoding", None)
        super().__init__(max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, **kwargs)

    @property
    def output_dtype(self) -> str:
        """The dtype of results."""
        return "string" if self.invert else super().output_dtype

    def _key(self, token: object) -> str:
        return text_of(token)

    def _bucket(self, token: str) -> int:
        return fingerprint64(token.encode()) % self.num_oov_indices

    def _array(self, tokens: list[Any]) -> np.ndarray[Any, Any]:
        # Bytes, as the strings of datasets are.
        return np.array([token.encode() for token in tokens], object)


class IntegerLookup(Lookup):
    """Maps integers to indices, or indices to integers; see ``keras.layers.IntegerLookup``."""

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: Any = None,
        vocabulary_dtype: str = "int64",
        **kwargs: Argument,
    ) -> None:
        super().__init__(max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, **kwargs)

    def _key(self, token: object) -> int:
        return int(token)  # type: ignore[call-overload]

    def _bucket(self, token: int) -> int:
        return token % self.num_oov_indices


class Hashing(HostLayer):
    """Maps values to bins by their hash; see ``keras.layers.Hashing``.

    Args:
        num_bins: The number of bins.
        mask_value: The value with bin 0.
        salt: Must be ``None``.
        output_mode: ``"int"``, ``"one_hot"``, ``"multi_hot"`` or ``"count"``.
        sparse: Must be ``False``.
        **kwargs: As for ``keras.Layer``.
    """

    def __init__(
        self,
        num_bins: int,
        mask_value: Any = None,
        salt: Any = None,
        output_mode: str = "int",
        sparse: bool = False,
        **kwargs: Argument,
    ) -> None:
        super().__init__(**kwargs)
        if sparse or salt is not None:
            raise UnsupportedError("salt and sparse=True need TensorFlow. Leave them out.")
        self.num_bins = num_bins
        self.mask_value = mask_value
        self.output_mode = output_mode

    def call(self, inputs: np.ndarray[Any, Any]) -> Any:
        """Returns the bins of values, encoded by ``output_mode``."""
        masks = self.mask_value is not None and self.num_bins > 1
        mask = text_of(self.mask_value) if masks else None
        bins = [self._bin(_text(item), mask) for item in inputs.reshape(-1).tolist()]
        indices = np.array(bins, np.int64).reshape(inputs.shape)
        return encode(indices, self.output_mode, self.num_bins)

    def _bin(self, text: str, mask: str | None) -> int:
        if mask is None:
            return fingerprint64(text.encode()) % self.num_bins
        return 0 if text == mask else 1 + fingerprint64(text.encode()) % (self.num_bins - 1)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> Any:
        """Returns the shape of results."""
        if self.output_mode == "int":
            return tuple(input_shape)
        return (*input_shape[:-1], self.num_bins)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        own = {name: getattr(self, name) for name in ("num_bins", "mask_value", "output_mode")}
        return {**super().get_config(), **own}


def _text(item: object) -> str:
    return str(int(item)) if isinstance(item, float) else text_of(item)
