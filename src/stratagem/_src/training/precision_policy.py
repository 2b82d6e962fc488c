"""``PrecisionPolicy``: in which dtypes a step computes (mixed precision)."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import DTypeLike, Leaf, PyTree
from stratagem._src.execution.gradients import Precision, gradient_function
from stratagem._src.values.array_operators import ArrayOperators, operand_of
from stratagem._src.values.regroup import is_array
from stratagem._src.variables.variable import Variable

__all__ = ["PrecisionPolicy", "differentiate_in", "warn_of_full_precision"]

_logger = logging.getLogger("stratagem")
_computed_in: set[PrecisionPolicy] = set()
_warned: set[str] = set()

_NAMED: dict[str, tuple[str, str | None]] = {
    "mixed_bfloat16": ("bfloat16", None),
    "mixed_float16": ("float16", "dynamic"),
    "float32": ("float32", None),
}


@dataclass(frozen=True)
class PrecisionPolicy:
    """In which dtype ``Optimizer.value_and_grad`` computes; variables and gradients keep their own dtype.

    ``Optimizer(precision="mixed_bfloat16")`` and ``"mixed_float16"`` stand for
    ``PrecisionPolicy("bfloat16")`` and ``PrecisionPolicy("float16", loss_scale="dynamic")``.

    Args:
        compute_dtype: The dtype of variables and inputs in the loss function.
        loss_scale: As in ``Optimizer``; needed for float16, whose range is small.
        keep: A regular expression: variables in whose names it is found are not cast, such as
            ``"norm|embedding"``.

    JAX equivalent: ``jmp.Policy``; a dtype policy in Keras.

    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> policy = sg.train.PrecisionPolicy("bfloat16")
    >>> policy.cast({"x": jnp.ones(2), "label": jnp.ones(2, int)})["x"].dtype
    dtype(bfloat16)
    """

    compute_dtype: DTypeLike
    loss_scale: float | str | None = None
    keep: str | None = None

    def __post_init__(self) -> None:
        dtype = jnp.dtype(self.compute_dtype)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise InvalidArgumentError(
                f"compute_dtype must be a floating-point dtype, got {dtype.name}. Use bfloat16 or float16."
            )
        object.__setattr__(self, "compute_dtype", dtype)
        if self.keep is not None:
            re.compile(self.keep)

    @classmethod
    def of(cls, given: str | PrecisionPolicy) -> PrecisionPolicy:
        """Returns the policy with a name, or the policy itself.

        Raises:
            InvalidArgumentError: If there is no such policy.
        """
        if isinstance(given, PrecisionPolicy):
            return given
        if given not in _NAMED:
            raise InvalidArgumentError(
                f"precision must be {', '.join(map(repr, _NAMED))} or a PrecisionPolicy, got {given!r}. "
                'Use "mixed_bfloat16" on TPUs, recent GPUs and CPUs.'
            )
        dtype, loss_scale = _NAMED[given]
        return cls(dtype, loss_scale)

    def casts(self, variable: Variable) -> bool:
        """Returns whether a loss function gets a variable in the compute dtype."""
        if not jnp.issubdtype(variable.dtype, jnp.floating):
            return False
        return self.keep is None or re.search(self.keep, variable.name) is None

    def cast(self, tree: PyTree) -> Any:
        """Returns a pytree with its floating-point arrays and variables in the compute dtype."""

        def cast_leaf(leaf: Leaf) -> Any:
            if not is_array(leaf) and not isinstance(leaf, ArrayOperators):
                return leaf
            array = jnp.asarray(operand_of(leaf))
            return array.astype(self.compute_dtype) if _is_floating(array) else leaf

        return jax.tree.map(cast_leaf, tree, is_leaf=lambda x: isinstance(x, ArrayOperators))


def differentiate_in(
    policy: PrecisionPolicy,
    fn: Callable[..., Any],
    variables: PyTree,
    has_aux: bool,
    cast_argnums: int | Sequence[int] | None,
    loss_scale: Callable[[], Any] | None,
) -> Callable[..., Any]:
    """Returns ``value_and_grad(fn, variables)`` in the precision of a policy.

    Args:
        policy: The policy.
        fn: The loss function.
        variables: The variables.
        has_aux: Whether ``fn`` returns a pair.
        cast_argnums: The arguments that are cast. Default: the first.
        loss_scale: Returns the current loss scale; ``None`` without one.
    """
    _computed_in.add(policy)
    numbers = (cast_argnums,) if isinstance(cast_argnums, int) else cast_argnums

    @functools.wraps(fn)
    def in_compute_dtype(*args: PyTree, **kwargs: PyTree) -> Any:
        chosen = range(min(1, len(args))) if numbers is None else numbers
        if any(not 0 <= number < len(args) for number in chosen):
            raise InvalidArgumentError(
                f"cast_argnums are positions of arguments, got {list(chosen)} for {len(args)} of them. "
                "Pass the arguments by position, or leave cast_argnums out."
            )
        cast = [policy.cast(arg) if i in chosen else arg for i, arg in enumerate(args)]
        return fn(*cast, **kwargs)

    precision = Precision(policy.compute_dtype, policy.casts, loss_scale)
    return gradient_function(in_compute_dtype, variables, has_aux, None, precision)


def warn_of_full_precision(policy: PrecisionPolicy | None, name: str) -> None:
    """Logs once that nothing is computed in an optimizer's precision: its ``value_and_grad`` is not used.

    Args:
        policy: The precision of the optimizer, if it has one.
        name: The optimizer's name.
    """
    if policy is None or policy in _computed_in or policy.compute_dtype == jnp.float32:
        return
    if name not in _warned:
        _warned.add(name)
        _logger.warning(
            "Optimizer %r has precision %s, but its value_and_grad was not used: the loss was computed in "
            "the dtype of the variables. Use optimizer.value_and_grad in place of sg.value_and_grad or a "
            "tape.",
            name,
            policy.compute_dtype.name,
        )


def _is_floating(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))
