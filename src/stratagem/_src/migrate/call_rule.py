"""``CallRule``: one line of the table, applied to one call."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

__all__ = ["CallRule", "Parameter", "arguments_in_place", "rule_of"]

_PARAMETER = re.compile(r"(!?)(\*?\w+)(?:>(\w+))?(?::(\w+))?(?:=(.+))?$")
_ARRAYS = {"array", "arrays", "computed"}
_ALWAYS_GIVEN = _ARRAYS | {"shape"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of TensorFlow's function, and what becomes of it."""

    name: str
    kind: str
    jax_name: str
    by_keyword: bool
    default: str | None

    @classmethod
    def parse(cls, text: str) -> Parameter:
        """Returns what a parameter in the table stands for."""
        found = _PARAMETER.match(text.strip())
        assert found is not None, text
        only_keyword, name, jax_name, kind, default = found.groups()
        return cls(name, kind or "value", jax_name or name, bool(only_keyword), default)


@dataclass(frozen=True)
class CallRule:
    """How calls of one function of TensorFlow are written with JAX."""

    target: str
    takes_strings: bool
    parameters: tuple[Parameter, ...]

    @classmethod
    def parse(cls, text: str) -> CallRule:
        """Returns the rule that a line of the table describes."""
        target, _, inside = text.rstrip(")").partition("(")
        parameters = tuple(Parameter.parse(part) for part in inside.split(", "))
        return cls(target.removeprefix("*"), target.startswith("*"), parameters)

    def arguments(
        self,
        original: cst.Call,
        updated: cst.Call,
        convert: Callable[
            [Parameter, cst.BaseExpression, cst.BaseExpression], cst.BaseExpression | None
        ],
    ) -> list[cst.Arg] | None:
        """Returns the arguments for JAX's function, or ``None`` if the call does not fit the rule.

        Args:
            original: The call as it was, for what is known about it.
            updated: The same call with its arguments rewritten.
            convert: Returns the expression to pass for a parameter, of the original and the rewritten
                argument, or ``None`` if it cannot be passed.
        """
        given = list(self._bind(updated.args))
        if not given or None in given:
            return None
        bound = {one[0].name for one in given if one is not None}
        if any(p.kind in _ALWAYS_GIVEN and p.name not in bound for p in self.parameters):
            return None
        made = []
        for place, one in enumerate(given):
            assert one is not None
            parameter, arg = one
            if parameter is _DROPPED:
                continue
            value = convert(parameter, original.args[place].value, arg.value)
            if value is None:
                return None
            by_position = arg.keyword is None or parameter.kind in _ARRAYS
            keyword = None if by_position and not parameter.by_keyword else parameter.jax_name
            made.append((self._order(parameter, keyword, place), _argument(value, keyword)))
        # Arrays that were passed by keyword come first, in the order of the function.
        made.sort(key=lambda pair: pair[0])
        found = [arg for _, arg in made]
        found += [
            _argument(cst.parse_expression(p.default), p.jax_name)
            for p in self.parameters
            if p.default is not None and p.name not in bound
        ]
        return arguments_in_place(updated.args, found)

    def _bind(self, args: Sequence[cst.Arg]) -> Iterator[tuple[Parameter, cst.Arg] | None]:
        by_name = {p.name: p for p in self.parameters}
        rest = next((p for p in self.parameters if p.name.startswith("*")), None)
        for place, arg in enumerate(args):
            if arg.star:
                yield None
            elif arg.keyword is None:
                if place < len(self.parameters) and self.parameters[place] is not rest:
                    yield self.parameters[place], arg
                else:
                    yield None if rest is None else (rest, arg)
            elif arg.keyword.value in by_name:
                yield by_name[arg.keyword.value], arg
            else:
                yield (_DROPPED, arg) if arg.keyword.value == "name" else None

    def _order(self, parameter: Parameter, keyword: str | None, place: int) -> tuple[bool, int]:
        return (keyword is not None, place if keyword else self._position(parameter, place))

    def _position(self, parameter: Parameter, place: int) -> int:
        return place if parameter.name.startswith("*") else self.parameters.index(parameter)


_DROPPED = Parameter("name", "dropped", "name", False, None)


@functools.cache
def rule_of(text: str) -> CallRule:
    """Returns a line of the table as a rule."""
    return CallRule.parse(text)


def arguments_in_place(old: Sequence[cst.Arg], new: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Returns new arguments with the commas, line breaks and comments of the old ones, place by place."""
    placed = []
    for place, arg in enumerate(new):
        slot = old[-1] if place == len(new) - 1 else old[min(place, len(old) - 1)]
        comma = slot.comma
        if place < len(new) - 1 and not isinstance(comma, cst.Comma):
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        if (
            place < len(new) - 1 and place >= len(old) - 1
        ):  # the last one had a trailing comma, or none
            comma = _comma_between(old)
        placed.append(arg.with_changes(comma=comma, whitespace_after_arg=slot.whitespace_after_arg))
    return placed


def _comma_between(old: Sequence[cst.Arg]) -> cst.Comma:
    """Returns a comma such as those between the arguments, for one more of them."""
    between = [arg.comma for arg in old[:-1] if isinstance(arg.comma, cst.Comma)]
    plain = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return next((comma for comma in between if not m.findall(comma, m.Comment())), plain)


def _argument(value: cst.BaseExpression, keyword: str | None) -> cst.Arg:
    if keyword is None:
        return cst.Arg(value)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(keyword), equal=equal)
