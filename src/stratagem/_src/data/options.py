"""``Options``: how a dataset runs and is sharded, without changing its elements."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "DistributeOptions",
    "Options",
]

AUTOTUNE = -1
SHARD_HINT = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2


_FORMER_NAMES = {"experimental_deterministic": "deterministic"}


class AutoShardPolicy(enum.IntEnum):
    """How a dataset is sharded between workers.

    >>> from stratagem.data.experimental import AutoShardPolicy
    >>> AutoShardPolicy.DATA.name
    'DATA'
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class _Checked:
    """Rejects misspelt fields and values of the wrong type, which would silently have no effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = [item.name for item in fields(self)]  # type: ignore[arg-type]
        if name not in known:
            raise InvalidArgumentError(
                f"{type(self).__name__} has no option {name!r}. It has {', '.join(known)}."
            )
        object.__setattr__(self, name, self._checked(name, value))

    def _checked(self, name: str, value: Any) -> Any:
        raise NotImplementedError


@dataclass
class DistributeOptions(_Checked):
    """The options for distributing a dataset.

    >>> from stratagem.data import Options
    >>> from stratagem.data.experimental import AutoShardPolicy
    >>> options = Options()
    >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    """

    auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO
    num_devices: int | None = None

    def _checked(self, name: str, value: Any) -> Any:
        if name == "auto_shard_policy":
            try:
                return AutoShardPolicy(value)
            except ValueError:
                raise InvalidArgumentError(
                    f"auto_shard_policy must be an AutoShardPolicy, got {value!r}."
                ) from None
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidArgumentError(f"num_devices must be None or an int > 0, got {value!r}.")
        return value


@dataclass
class Options(_Checked):
    """How a dataset runs and is sharded.

    ``deterministic=False`` allows parallel transformations to reorder elements. They never do, so that
    an iterator can always be saved and restored exactly. ``experimental_deterministic`` is its former name.
    ``experimental_slack`` and the attributes of ``autotune``, ``threading``, ``experimental_threading`` and
    ``experimental_optimization`` are hints without effect.

    >>> from stratagem.data import Dataset, Options
    >>> options = Options()
    >>> options.deterministic = True
    >>> Dataset.range(3).with_options(options).options().deterministic
    True
    """

    experimental_distribute: DistributeOptions = field(default_factory=DistributeOptions)
    deterministic: bool | None = None
    experimental_slack: bool | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(_FORMER_NAMES.get(name, name), value)

    @property
    def experimental_deterministic(self) -> bool | None:
        """The former name of ``deterministic``."""
        return self.deterministic

    @property
    def autotune(self) -> SimpleNamespace:
        """An object whose attributes can be set, without effect."""
        return SimpleNamespace()

    @property
    def threading(self) -> SimpleNamespace:
        """An object whose attributes can be set, without effect."""
        return SimpleNamespace()

    @property
    def experimental_threading(self) -> SimpleNamespace:
        """The former name of ``threading``."""
        return SimpleNamespace()

    @property
    def experimental_optimization(self) -> SimpleNamespace:
        """An object whose attributes can be set, without effect."""
        return SimpleNamespace()

    def _checked(self, name: str, value: Any) -> Any:
        if name == "experimental_distribute" and not isinstance(value, DistributeOptions):
            raise InvalidArgumentError(
                f"experimental_distribute must be a DistributeOptions, got {value!r}."
            )
        is_flag = value is None or isinstance(value, bool)
        if name in ("deterministic", "experimental_slack") and not is_flag:
            raise InvalidArgumentError(f"{name} must be None or a bool, got {value!r}.")
        return value

    def merge(self, other: Options) -> Options:
        """Returns these options, overridden by those of ``other`` that differ from their defaults."""
        mine, theirs = self.experimental_distribute, other.experimental_distribute
        default = DistributeOptions()
        merged = DistributeOptions(
            theirs.auto_shard_policy
            if theirs.auto_shard_policy != default.auto_shard_policy
            else mine.auto_shard_policy,
            mine.num_devices if theirs.num_devices is None else theirs.num_devices,
        )
        deterministic = self.deterministic if other.deterministic is None else other.deterministic
        slack = (
            self.experimental_slack
            if other.experimental_slack is None
            else other.experimental_slack
        )
        return Options(merged, deterministic, slack)
