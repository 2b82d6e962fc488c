"""``foreign_custom_calls``: the custom calls of a saved program that ``jax.export`` does not allow."""

from __future__ import annotations

from jax import export
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, sdy, stablehlo

from stratagem._src.jax_compat.stable_custom_calls import stable_custom_calls

__all__ = ["foreign_custom_calls"]

_CUSTOM_CALL = "stablehlo.custom_call"
_TARGET = "call_target_name"


def foreign_custom_calls(exported: export.Exported) -> list[str]:
    """Returns the custom calls of a program and of its gradients that ``jax.export`` would not export.

    A custom call invokes a function of this process by name, with arguments from the file. Some of the
    functions that JAX registers do not validate an index or an address.

    Raises:
        Exception: If the program cannot be parsed.
    """
    found = _targets(exported)
    while exported.has_vjp():
        exported = exported.vjp()
        found |= _targets(exported)
    return sorted(found - stable_custom_calls())


def _targets(exported: export.Exported) -> set[str]:
    found = set()

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == _CUSTOM_CALL:
            found.add(ir.StringAttr(operation.attributes[_TARGET]).value)
        return ir.WalkResult.ADVANCE

    context = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    with context:
        module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
        module.operation.walk(visit)
    return found
