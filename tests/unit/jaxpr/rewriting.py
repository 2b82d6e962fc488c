"""What a pass makes of a function: the jaxpr before and after it, and what each computes."""

from __future__ import annotations

import jax

from stratagem._src.jaxpr.walk import all_equations


def rewriting_by(rewrite):
    """Returns a function that applies a pass to a function, and computes both."""

    def rewritten(fn, *args):
        before = jax.make_jaxpr(fn)(*args)
        after = rewrite(before.jaxpr)
        leaves = jax.tree.leaves(args)
        results = [
            jax.jit(lambda *xs, j=j: jax.core.eval_jaxpr(j, before.consts, *xs))(*leaves)
            for j in (before.jaxpr, after)
        ]
        return before.jaxpr, after, results

    return rewritten


def count(jaxpr, name):
    """Returns how many equations of a primitive a jaxpr and those in it have."""
    return sum(eqn.primitive.name == name for eqn in all_equations(jaxpr))
