"""``ShardingRules``: which dims of which variables are sharded over which axes of a replica's devices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from stratagem._src.core.errors import InvalidArgumentError, ShapeMismatchError
from stratagem._src.mesh.replica_group import REPLICA_AXIS

__all__ = ["Layout", "LayoutLike", "LayoutMap", "ShardingRules", "check_layout"]

Layout: TypeAlias = tuple[tuple[str, ...], ...]
"""For each dim the axes that it is sharded over; dims that are left out are not sharded."""

LayoutLike: TypeAlias = Sequence[str | Sequence[str] | None]
"""A layout as users write it: an axis, several axes or ``None`` for each dim."""


class LayoutMap(Protocol):
    """A ``keras.distribution.LayoutMap``."""

    @property
    def device_mesh(self) -> Any:
        """The devices, with the names and sizes of their axes."""

    def __getitem__(self, path: str, /) -> Any:
        """Returns the layout of a variable; ``None`` if no key matches its path."""

    def __iter__(self) -> Iterator[str]:
        """Iterates over the keys."""


class ShardingRules:
    """Says over which axes of a replica's devices the dims of each variable are sharded.

    Give it to a strategy as ``sharding_rules=``. A replica then has as many devices as the sizes of
    ``axes`` multiply to. A variable that is created in the scope gets the layout of the first rule whose
    regular expression is found in its name (``re.search``); a variable that no rule matches, and every
    scalar, is replicated. Names such as ``fsdp`` and ``tensor`` are a convention: what is sharded follows
    from the rules and from ``batch``.

    A layout has an entry for each dim: the name of an axis, a tuple of names, or ``None``. Trailing dims
    may be left out. A ``PartitionSpec`` is a layout too.

    Args:
        rules: Layouts of variables by regular expression, the first match first.
        axes: The axes of a replica's devices and their sizes; devices of the last axis are neighbours.
        batch: Axes over which the first dim of each replica's batch is sharded. Default: ``("fsdp",)``
            if there is such an axis.
        activations: Layouts by name, for ``constrain(x, name)``.
        data: The name of the axis of the replicas, for layouts of activations.
        allow_unused: Whether a rule may match no variable.

    JAX equivalent: ``NamedSharding`` for each leaf of a pytree, and ``with_sharding_constraint``.

    >>> import numpy as np
    >>> import stratagem as sg
    >>> rules = sg.distribute.experimental.ShardingRules(
    ...     {"kernel": ("fsdp", "tensor")}, axes={"fsdp": 1, "tensor": 2})
    >>> strategy = sg.distribute.MirroredStrategy(
    ...     [f"CPU:{i}" for i in range(4)], sharding_rules=rules)
    >>> with strategy.scope():
    ...     kernel = sg.Variable(np.ones((8, 6), np.float32), name="dense/kernel")
    >>> strategy.num_replicas_in_sync, kernel.snapshot().addressable_shards[0].data.shape
    (2, (8, 3))
    """

    def __init__(
        self,
        rules: Mapping[str, LayoutLike] | Iterable[tuple[str, LayoutLike]],
        *,
        axes: Mapping[str, int],
        batch: str | Sequence[str] | None = None,
        activations: Mapping[str, LayoutLike] | None = None,
        data: str = "data",
        allow_unused: bool = False,
    ) -> None:
        self.axes: dict[str, int] = _checked_axes(axes, data)
        self.data: str = data
        self.allow_unused: bool = allow_unused
        pairs = rules.items() if isinstance(rules, Mapping) else rules
        self.rules: dict[str, Layout] = {}
        for pattern, layout in pairs:
            _check_pattern(pattern)
            self.rules.setdefault(pattern, self.layout(layout, f"the rule {pattern!r}"))
        self.activations: dict[str, Layout] = {
            name: self.layout(layout, f"the activation {name!r}")
            for name, layout in (activations or {}).items()
        }
        if batch is None:
            batch = [name for name in ("fsdp",) if name in self.axes]
        self.batch: tuple[str, ...] = self.layout([batch], "batch")[0]
        if data in self.batch:
            raise InvalidArgumentError(
                f"batch lists axes of a replica's devices, got {data!r}, the axis of the replicas, over "
                "which batches are divided in any case. Leave it out."
            )
        self._find: Callable[[str], str | None] = self._first_match

    @classmethod
    def from_layout_map(
        cls, layout_map: LayoutMap, batch_dim_name: str | None = None, *, allow_unused: bool = False
    ) -> ShardingRules:
        """Returns the rules of a ``keras.distribution.LayoutMap``, for ``sharding_rules=``.

        A strategy also takes the map itself; this method has options. Its device mesh gives the axes. As in
        Keras, a path that several keys match is an error, and keys such as ``"dense/output"`` are layouts
        of what a layer returns.

        Args:
            layout_map: The map.
            batch_dim_name: The axis of the device mesh that becomes the axis of the replicas. Default: the
                first.
            allow_unused: Whether a key may match no variable.

        >>> import keras
        >>> import stratagem as sg
        >>> mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], [f"cpu:{i}" for i in range(4)])
        >>> layouts = keras.distribution.LayoutMap(mesh)
        >>> layouts[".*kernel"] = (None, "model")
        >>> sg.distribute.experimental.ShardingRules.from_layout_map(layouts)
        ShardingRules({'.*kernel': (None, 'model')}, axes={'model': 2}, data='batch')
        """
        mesh = layout_map.device_mesh
        if mesh is None:
            raise InvalidArgumentError(
                "A LayoutMap for a strategy needs a device mesh, which names the axes and their sizes, got "
                "None. Use LayoutMap(keras.distribution.DeviceMesh(shape, axis_names))."
            )
        sizes = dict(zip(mesh.axis_names, map(int, mesh.shape), strict=True))
        data = batch_dim_name or mesh.axis_names[0]
        if data not in sizes:
            raise InvalidArgumentError(
                f"batch_dim_name must be an axis of the device mesh, {list(sizes)}, got {data!r}."
            )
        made = cls(
            {key: tuple(layout_map[key].axes) for key in layout_map},
            axes={name: size for name, size in sizes.items() if name != data},
            data=data,
            allow_unused=allow_unused,
        )

        def find(path: str) -> str | None:
            layout = layout_map[path]
            return next((key for key in layout_map if layout_map[key] is layout), None)

        made._find = find
        return made

    @property
    def num_devices(self) -> int:
        """The number of devices of a replica."""
        return math.prod(self.axes.values())

    def layout(self, layout: LayoutLike, what: str) -> Layout:
        """Returns a layout in canonical form.

        Args:
            layout: The layout as the user wrote it.
            what: What it is the layout of, for messages.

        Raises:
            InvalidArgumentError: If it names an unknown axis, or one axis twice.
        """
        if isinstance(layout, str):
            raise InvalidArgumentError(
                f"A layout has an entry for each dim, got the string {layout!r} for {what}. Use "
                f"({layout!r},) to shard the first dim."
            )
        entries = tuple(
            () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            for entry in layout
        )
        names = [name for entry in entries for name in entry]
        known = (*self.axes, self.data)
        for name in names:
            if name not in known:
                raise InvalidArgumentError(
                    f"A layout may use the axes {', '.join(known)}, got {name!r} in {what}. Correct the "
                    "name, or add the axis to ShardingRules(axes=...)."
                )
        if len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"Each axis can shard one dim of an array, got {_shown(entries)} for {what}. Remove the "
                "repeated axis."
            )
        return entries

    def rule_of(self, path: str) -> str | None:
        """Returns the rule that applies to a variable; ``None`` if none matches."""
        return self._find(path)

    def layout_of(self, path: str, rule: str, shape: Sequence[int]) -> Layout:
        """Returns the layout of a variable that a rule applies to.

        Raises:
            InvalidArgumentError: If the rule names the axis of the replicas.
            ShapeMismatchError: If the layout does not fit the shape.
        """
        layout = self.rules[rule]
        what = f"variable {path!r} by the rule {rule!r}"
        if any(self.data in entry for entry in layout):
            raise InvalidArgumentError(
                f"A variable is sharded over the axes of a replica's devices, {', '.join(self.axes)}, and "
                f"replicated between replicas, got the axis of the replicas, {self.data!r}, for {what}. "
                "Add an axis, such as fsdp, and shard over that."
            )
        check_layout(shape, layout, self.axes, what)
        return layout

    def output_layout(self, path: str) -> Layout | None:
        """Returns the layout of a Keras layer's result, by activation or key of a ``LayoutMap``."""
        if path in self.activations:
            return self.activations[path]
        rule = None if self._find == self._first_match else self._find(path)
        return None if rule is None else self.rules[rule]

    def _first_match(self, path: str) -> str | None:
        return next((rule for rule in self.rules if re.search(rule, path)), None)

    @property
    def required(self) -> list[str]:
        """The rules that must match a variable."""
        if self.allow_unused:
            return []
        from_keras = self._find != self._first_match
        # A key of Keras may be for what a layer returns.
        return [rule for rule in self.rules if not (from_keras and "output" in rule)]

    def _key(self) -> Hashable:
        find = None if self._find == self._first_match else id(self._find)
        return (
            tuple(self.rules.items()),
            tuple(self.axes.items()),
            tuple(self.activations.items()),
            self.batch,
            self.data,
            self.allow_unused,
            find,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardingRules) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        rules = {rule: _shown(layout) for rule, layout in self.rules.items()}
        data = "" if self.data == "data" else f", data={self.data!r}"
        return f"ShardingRules({rules}, axes={self.axes}{data})"


def check_layout(shape: Sequence[int], layout: Layout, sizes: Mapping[str, int], what: str) -> None:
    """Checks that an array can be sharded as a layout says.

    Args:
        shape: The shape of the array.
        layout: The layout.
        sizes: The sizes of the axes.
        what: What the array is, for messages.

    Raises:
        ShapeMismatchError: If not.
    """
    if len(layout) > len(shape):
        raise ShapeMismatchError(
            f"A layout has at most one entry for each dim, got {_shown(layout)} for {what} of shape "
            f"{tuple(shape)}. Remove entries, or let the rule match fewer names."
        )
    for dim, axes in enumerate(layout):
        count = math.prod(sizes[axis] for axis in axes)
        if shape[dim] % count:
            raise ShapeMismatchError(
                f"A dim must be divisible by the size of the axes that it is sharded over, got dim {dim} "
                f"of size {shape[dim]} over {', '.join(axes)} of size {count} for {what} of shape "
                f"{tuple(shape)}. Shard another dim, change the axes, or pad the array."
            )


def _checked_axes(axes: Mapping[str, int], data: str) -> dict[str, int]:
    if not axes or any(
        not isinstance(name, str) or not isinstance(size, int) or size < 1
        for name, size in axes.items()
    ):
        raise InvalidArgumentError(
            f"axes must be names and sizes, each 1 or more, got {dict(axes)!r}. Use for example "
            'axes={"fsdp": 2, "tensor": 2}.'
        )
    for name in (data, REPLICA_AXIS):
        if name in axes:
            raise InvalidArgumentError(
                f"axes are those of a replica's devices, got {name!r}, which is the axis of the replicas. "
                "Leave it out: there are as many replicas as groups of devices."
            )
    return dict(axes)


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgumentError(
            f"A sharding rule is a regular expression, got {pattern!r}: {error}. Escape characters such "
            "as ( and * with re.escape."
        ) from None


def _shown(layout: Layout) -> tuple[Any, ...]:
    """Returns a layout as users write it."""
    return tuple(
        None if not axes else axes[0] if len(axes) == 1 else tuple(axes) for axes in layout
    )
