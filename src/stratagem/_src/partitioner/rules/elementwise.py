"""Operations that work element by element."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem._src.partitioner.division import Division
from stratagem._src.partitioner.inlined_program import Equation
from stratagem._src.partitioner.layout import Split, Value
from stratagem._src.partitioner.rules.rule import GATHER_ALL, Gather, first_split, rule

__all__ = ["ELEMENTWISE", "blocks_of"]

ELEMENTWISE = tuple(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    bitcast_convert_type cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos cosh
    digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow
    is_finite le le_to lgamma log log1p logistic lt lt_to max min mul ne neg nextafter not
    optimization_barrier or polygamma population_count pow real reduce_precision
    regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
    """.split()  # noqa: SIM905
)


def blocks_of(
    division: Division, operands: Sequence[Value], dim: int, rank: int
) -> list[Value] | Gather:
    """Returns operands of one shape, so that each is split.

    Dimensions are counted from the last one: the first ones of an operand may be missing, and a single
    element counts for all.

    Args:
        division: The replicas.
        operands: The operands.
        dim: In which dimension of the result.
        rank: How many dimensions that has.
    """
    blocks = []
    others = []
    for position, value in enumerate(operands):
        own = dim - rank + value.array.ndim
        if isinstance(value.layout, Split):
            if value.layout.dim != own:
                others.append(position)
        elif own >= 0 and value.array.shape[own] != 1:
            value = division.block(value, own)
        blocks.append(value)
    return Gather(tuple(others)) if others else blocks


@rule(*ELEMENTWISE)
def elementwise(
    division: Division, equation: Equation, operands: Sequence[Value]
) -> list[Value] | Gather:
    """All operands are split like the first that is."""
    if equation.name == "optimization_barrier":
        arrays = division.bind(equation.primitive, equation.params, [v.array for v in operands])
        return [Value(a, v.layout) for a, v in zip(arrays, operands, strict=True)]
    if (
        equation.name == "bitcast_convert_type"
        and len(equation.shapes[0]) != operands[0].array.ndim
    ):
        return GATHER_ALL
    position, dim = first_split(operands)
    rank = len(equation.shapes[0])
    dim += rank - operands[position].array.ndim
    blocks = blocks_of(division, operands, dim, rank)
    if isinstance(blocks, Gather):
        return blocks
    arrays = division.bind(equation.primitive, equation.params, [v.array for v in blocks])
    return [Value(array, Split(dim)) for array in arrays]
