"""``RuleMatches``: which sharding rules have matched which variables of a strategy."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.mesh.sharding_rules import Layout, ShardingRules
from stratagem._src.variables.variable_attributes import UNNAMED

__all__ = ["RuleMatches"]

_SHOWN = 8


class RuleMatches:
    """The rules of a strategy, and the variables that they have been applied to.

    Args:
        rules: The rules.
    """

    def __init__(self, rules: ShardingRules) -> None:
        self.rules = rules
        self._matched: set[str] = set()
        self._paths: list[str] = []
        self._num_unnamed = 0
        self._is_checked = False

    def layout_of(self, name: str | None, shape: Sequence[int]) -> Layout | None:
        """Returns the layout of a new variable; ``None`` if it is replicated.

        Raises:
            ValueError: If the layout of the rule that matches does not fit.
        """
        if not shape:
            return None
        path = (name or UNNAMED).removesuffix(":0")
        if path == UNNAMED:
            self._num_unnamed += 1
        elif len(self._paths) < _SHOWN:
            self._paths.append(path)
        rule = self.rules.rule_of(path)
        if rule is None:
            return None
        layout = self.rules.layout_of(path, rule, shape)
        self._matched.add(rule)
        return layout if any(layout) else None

    def check(self) -> None:
        """Checks, once variables exist, that every rule has matched one.

        Raises:
            InvalidArgumentError: If a rule has not.
        """
        if self._is_checked or not (self._paths or self._num_unnamed):
            return
        unused = [rule for rule in self.rules.required if rule not in self._matched]
        if unused:
            raise InvalidArgumentError(
                f"Every sharding rule must match a variable, got {', '.join(map(repr, unused))}, which "
                f"matches none of {self._listed()}. Correct the expression, or pass allow_unused=True to "
                f"ShardingRules.{self._about_names()}"
            )
        self._is_checked = True

    def _listed(self) -> str:
        more = ", ..." if len(self._paths) == _SHOWN else ""
        return (
            f"{', '.join(self._paths)}{more}"
            if self._paths
            else "the variables, which have no names"
        )

    def _about_names(self) -> str:
        if not self._num_unnamed:
            return ""
        return (
            f" {self._num_unnamed} variable(s) were created without a name: pass name=, or "
            "create a pytree of them with distribute.experimental.named_variables(tree)."
        )
