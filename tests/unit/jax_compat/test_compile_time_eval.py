"""Computing at once while something is traced."""

import contextlib
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config

from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.tracing import is_tracer


def test_arrays_are_concrete_while_something_is_traced():
    made = []

    def traced(x):
        made.append(jnp.ones(2))
        made.append(evaluate_now(lambda: jnp.ones(2) + 1))
        made.append(jnp.ones(2))
        return x

    jax.make_jaxpr(traced)(1.0)
    assert [is_tracer(array) for array in made] == [True, False, True]
    np.testing.assert_array_equal(made[1], [2, 2])


def test_an_interrupt_does_not_leave_it_switched_on():
    def interrupted_at(number):
        moments, reached = itertools.count(), False

        def profile(frame, event, _):
            nonlocal reached
            here = frame.f_code.co_filename.endswith(("compile_time_eval.py", "contextlib.py"))
            if here and event in ("call", "c_return") and next(moments) == number:
                reached = True
                raise KeyboardInterrupt

        def traced(x):
            sys.setprofile(profile)
            try:
                evaluate_now(lambda: None)
            finally:
                sys.setprofile(None)
            return x

        before = config.eager_constant_folding.get_local()
        with contextlib.suppress(KeyboardInterrupt):
            jax.make_jaxpr(traced)(1.0)
        left = config.eager_constant_folding.get_local()
        config.eager_constant_folding.set_local(before)  # for the tests after this one
        assert left == before
        return reached

    number = 0
    while interrupted_at(number):
        number += 1
    assert number >= 2


def test_outside_of_traces_it_is_a_call():
    with pytest.raises(ZeroDivisionError):
        evaluate_now(lambda: 1 // 0)
