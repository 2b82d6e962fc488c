"""Blocks of ``tf.GradientTape`` become functions for ``sg.value_and_grad``, where that is the same."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from stratagem._src.migrate.import_rewriter import ImportRewriter
from stratagem._src.migrate.inference import Inference
from stratagem._src.migrate.jax_names import JaxNames
from stratagem._src.migrate.program import Program, code
from stratagem._src.migrate.tape_blocks import TapeBlock, find_block

__all__ = ["TapeRewriter"]

_BLANK = cst.EmptyLine(indent=False)


class TapeRewriter:
    """Rewrites a block and the gradient after it."""

    def __init__(
        self, program: Program, inference: Inference, names: JaxNames, imports: ImportRewriter
    ) -> None:
        self._program = program
        self._infer = inference
        self._names = names
        self._imports = imports
        self._function = "compute_loss"
        used = {node.value for node in program.nodes if isinstance(node, cst.Name)}
        while self._function in used:
            self._function += "_"

    def statements(
        self, original: Sequence[cst.BaseStatement], updated: Sequence[cst.BaseStatement]
    ) -> list[cst.BaseStatement] | None:
        """Returns the statements of a block with its tapes rewritten, or ``None`` if there are none.

        Args:
            original: The statements as they were.
            updated: The same statements rewritten; imports among them may have become several.
        """
        tapes = [one for one in original if isinstance(one, cst.With)]
        if not tapes or len(original) != len(updated):
            shift = len(updated) - len(original)
            if not tapes or shift < 0:
                return None
            # Imports come first: what follows the tape is as far from the end as it was.
            return self._rewritten(original, updated, shift)
        return self._rewritten(original, updated, 0)

    def _rewritten(
        self,
        original: Sequence[cst.BaseStatement],
        updated: Sequence[cst.BaseStatement],
        shift: int,
    ) -> list[cst.BaseStatement] | None:
        found: list[cst.BaseStatement] = list(updated)
        changed = False
        for place in range(len(original) - 1):
            block, after = original[place], original[place + 1]
            tape = find_block(self._program, self._infer, block, after)
            new, new_after = updated[place + shift], updated[place + shift + 1]
            if tape is None or not isinstance(new, cst.With):
                continue
            assert isinstance(block, cst.With)
            assert isinstance(block.items[0].item, cst.Call)
            function = block.items[0].item.func
            imported = self._program.imported_name(function)
            if imported is None or not self._imports.renames(imported.name):
                continue
            assert isinstance(new_after, cst.SimpleStatementLine)
            is_first = place + shift == 0
            found[place + shift] = self._definition(tape, new, is_first)
            found[place + shift + 1] = self._call(tape, new_after)
            changed = True
        return found if changed else None

    def _definition(self, tape: TapeBlock, block: cst.With, is_first: bool) -> cst.FunctionDef:
        aux = "" if not tape.kept else f", {_tuple(tape.kept)}"
        result = cst.parse_statement(f"return {tape.loss}{aux}")
        assert isinstance(block.body, cst.IndentedBlock)
        leading = list(block.leading_lines)
        if not is_first and not leading:
            leading = [_BLANK]
        return cst.FunctionDef(
            cst.Name(self._function),
            cst.Parameters(),
            block.body.with_changes(body=[*block.body.body, result]),
            leading_lines=leading,
        )

    def _call(self, tape: TapeBlock, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        assignment = line.body[0]
        assert isinstance(assignment, cst.Assign)
        target = assignment.targets[0].target
        name = code(target)
        if isinstance(target, cst.Tuple) and not target.lpar:
            name = f"({name})"
        assert isinstance(assignment.value, cst.Call)
        sources = code(assignment.value.args[1].value)
        value = f"({tape.loss}, {_tuple(tape.kept)})" if tape.kept else tape.loss
        option = ", has_aux=True" if tape.kept else ""
        sg = self._names.names["sg"]
        call = f"{sg}.value_and_grad({self._function}, {sources}{option})()"
        new = cst.parse_statement(f"{value}, {name} = {call}")
        assert isinstance(new, cst.SimpleStatementLine)
        leading = list(line.leading_lines) or [_BLANK]
        return line.with_changes(body=new.body, leading_lines=leading)


def _tuple(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
