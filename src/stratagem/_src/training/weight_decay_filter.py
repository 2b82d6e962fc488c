"""``WeightDecayFilter``: which variables' weights decay, by patterns on their names."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.variables.variable import Variable

__all__ = ["WeightDecayFilter"]

_logger = logging.getLogger("stratagem")

# What factories of optax call the argument that says for each variable whether its weights decay.
_MASKS = ("mask", "weight_decay_mask")


@dataclass(frozen=True)
class WeightDecayFilter:
    """Excludes variables whose name has a match of a pattern from weight decay.

    A name is a path, such as ``"encoder/norm/scale"``. That of a Keras variable is its ``path``.

    Attributes:
        excluded: Regular expressions.
    """

    excluded: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Sequence[str] | None) -> WeightDecayFilter | None:
        """Returns the filter with these patterns, if there are any.

        Raises:
            InvalidArgumentError: If they are not a list of regular expressions.
        """
        if not patterns:
            return None
        if isinstance(patterns, str):
            raise InvalidArgumentError(
                "exclude_from_weight_decay must be a list of regular expressions, got the string "
                f"{patterns!r}. Write [{patterns!r}]."
            )
        for pattern in patterns:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise InvalidArgumentError(
                    "exclude_from_weight_decay must be a list of regular expressions, got "
                    f"{pattern!r} in it: {error}."
                ) from error
        return cls(tuple(patterns))

    def check(self, factory: Any, *, has_factory: bool) -> None:
        """Checks that a factory of optax can leave out variables.

        Args:
            factory: The transformation, or its factory.
            has_factory: Whether it is a factory.

        Raises:
            InvalidArgumentError: If not.
        """
        if not has_factory or _mask_parameter(factory) is None:
            raise InvalidArgumentError(
                "exclude_from_weight_decay needs a factory of optax that takes a mask, and a learning "
                "rate, as in Optimizer(optax.adamw, learning_rate=1e-3, "
                f'exclude_from_weight_decay=["bias"]), got {factory!r}.'
            )

    def mask(self, factory: Any, decays: tuple[bool, ...] | bool) -> dict[str, Any]:
        """Returns the argument for the factory that says which weights decay."""
        name = _mask_parameter(factory)
        assert name is not None
        return {name: list(decays) if isinstance(decays, tuple) else decays}

    def decays(self, variables: Sequence[Variable]) -> tuple[bool, ...]:
        """Returns whether the weights of each variable decay; warns of patterns that match no name."""
        names = [_name(variable) for variable in variables]
        unused = [p for p in self.excluded if not any(re.search(p, name) for name in names)]
        if unused:
            _logger.warning(
                "exclude_from_weight_decay=%s matches no variable. The names are %s%s.",
                unused,
                names[:8],
                " and others" if len(names) > 8 else "",
            )
        return tuple(map(self._decays, names))

    def decays_one(self, variable: Variable) -> bool:
        """Returns whether the weights of a variable decay."""
        return self._decays(_name(variable))

    def _decays(self, name: str) -> bool:
        return not any(re.search(pattern, name) for pattern in self.excluded)


def _name(variable: Variable) -> str:
    return variable.name.removesuffix(":0")


def _mask_parameter(factory: Any) -> str | None:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None
    return next((name for name in _MASKS if name in parameters), None)
