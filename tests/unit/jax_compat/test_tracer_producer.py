import jax
import jax.numpy as jnp

from stratagem._src.jax_compat.tracer_producer import constant_value, producer


def test_the_operation_of_a_traced_array_and_its_operands():
    found = {}

    def f(x):
        found["sum"] = producer(jnp.sum(x) / 4.0)
        found["argument"] = producer(x)
        found["number"] = constant_value(found["sum"].operands[1])
        return x

    jax.make_jaxpr(f)(jnp.ones(3))
    assert found["sum"].primitive == "div"
    assert producer(found["sum"].operands[0]).primitive == "reduce_sum"
    assert found["argument"] is None
    assert found["number"] == 4.0


def test_what_is_not_traced_has_none():
    assert producer(jnp.ones(3)) is None
    assert producer(object()) is None
    assert constant_value(jnp.ones(3)) is None
