import jax

from stratagem._src.jax_compat.tracer_owner import belongs_to, stages_into
from stratagem._src.jax_compat.tracing import active_trace


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


def test_operations_go_into_the_trace_itself_also_inside_of_a_gradient():
    answers = {}

    def outer(x):
        trace = active_trace()

        def ask(name):
            def function(y):
                answers[name] = stages_into(trace)
                return y * 1.0

            return function

        ask("itself")(x)
        jax.grad(ask("grad"))(x)
        jax.vmap(ask("vmap"))(x[None])
        jax.jit(ask("jit"))(x)
        jax.lax.map(ask("loop"), x[None])
        return x

    jax.make_jaxpr(outer)(jax.numpy.float32(1))
    wanted = {"itself": True, "grad": True, "vmap": True, "jit": False, "loop": False}
    assert answers == wanted
