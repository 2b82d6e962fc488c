import jax

from stratagem._src.core.tracing import active_trace
from stratagem._src.jax_internals.tracer_owner import belongs_to


def test_a_traced_array_belongs_to_the_innermost_trace_alone():
    answers = []

    def outer(x):
        answers.append(belongs_to(x, active_trace()))

        def inner(y):
            answers.extend([belongs_to(x, active_trace()), belongs_to(x + y, active_trace())])
            return y

        jax.make_jaxpr(inner)(1.0)
        return x

    jax.make_jaxpr(outer)(1.0)
    assert answers == [True, False, True]


def test_what_does_not_say_belongs_to_none():
    assert not belongs_to(object(), active_trace())
