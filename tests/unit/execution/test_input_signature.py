"""``function(input_signature=...)`` and the other arguments that TensorFlow's has."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem import TensorSpec

VECTOR = TensorSpec([None], sg.float32)
WHOLE = TensorSpec([], sg.int32)
NUMBER = TensorSpec([], sg.float32)


def doubled(x):
    return x * 2


@pytest.fixture(params=[False, True], ids=["compiled", "eager"])
def eagerly(request):
    sg.config.run_functions_eagerly(request.param)
    yield request.param
    sg.config.run_functions_eagerly(False)


@pytest.mark.parametrize(
    "value",
    [jnp.array([1.0, 2.0]), [1.0, 2.0], [1, 2], np.array([1.0, 2.0]), np.array([1, 2])],
    ids=["array", "list", "whole numbers", "float64", "int64"],
)
def test_values_become_what_is_declared(value, eagerly):
    f = sg.function(doubled, input_signature=[VECTOR])
    for result in f(value), f(x=value):
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, [2.0, 4.0])


def test_variables_are_read(eagerly):
    f = sg.function(doubled, input_signature=[VECTOR])
    np.testing.assert_array_equal(f(sg.Variable([3.0])), [6.0])


@pytest.mark.parametrize(
    ("spec", "args", "message"),
    [
        (VECTOR, (jnp.array([1, 2]),), r"x must be .*float32.*int32"),
        (VECTOR, (jnp.ones((1, 1)),), r"x must be .*\(None,\).*\(1, 1\)"),
        (VECTOR, (1.0,), r"x must be"),
        (VECTOR, (), "missing a required argument: 'x'"),
        (VECTOR, ([1.0], 3), "too many positional arguments"),
        (WHOLE, (3.5,), "x must be .*int32.*3.5"),
        (WHOLE, (3.0,), "x must be .*int32.*3.0"),
        (WHOLE, (2**40,), "do not fit int32"),
        (WHOLE, ("a",), "x must be"),
        (TensorSpec([], sg.bool), (1,), "x must be"),
        ({"a": NUMBER}, ({"b": 1.0},), r"x must be a mapping with the keys \['a'\]"),
        ([NUMBER], ((1.0,),), "x must be a list of 1"),
        ((NUMBER, [WHOLE]), ((1.0, [1.5]),), r"x\[1\]\[0\] must be"),
    ],
)
def test_calls_that_do_not_match(spec, args, message, eagerly):
    f = sg.function(lambda x: 0, input_signature=[spec])
    with pytest.raises(TypeError, match=message) as caught:
        f(*args)
    assert isinstance(caught.value, sg.errors.SignatureMismatchError)


def test_numbers_that_are_declared_do_not_retrace():
    f = sg.function(lambda n: n + 1, input_signature=[WHOLE])
    assert [int(f(n)) for n in (3, 4, np.int64(5), True)] == [4, 5, 6, 2]
    assert f.experimental_get_tracing_count() == 1


def test_nests_are_opened(eagerly):
    f = sg.function(
        lambda d: d["a"] + d["b"][0].sum(),
        input_signature=[{"a": NUMBER, "b": [TensorSpec([2], sg.int32)]}],
    )
    assert float(f({"a": 1, "b": [[2, 3]]})) == 6.0


def test_arguments_without_a_spec_keep_their_defaults(eagerly):
    f = sg.function(lambda n, k=2: n * k, input_signature=[NUMBER])
    assert float(f(3)) == float(f(3, 2)) == float(f(3, k=2)) == 6.0
    with pytest.raises(TypeError, match="no spec for k"):
        f(3, k=5)


def test_wrong_signatures():
    with pytest.raises(TypeError, match="no spec for 'b'"):
        sg.function(lambda a, b: a, input_signature=[NUMBER])(1.0, 2.0)
    with pytest.raises(TypeError, match=r"3 specs.* 2 positional"):
        sg.function(lambda a, b: a, input_signature=[NUMBER] * 3)(1.0, 2.0)
    with pytest.raises(TypeError, match="no spec for 'k'"):
        sg.function(lambda a, *, k: a, input_signature=[NUMBER])(1.0, k=1)
    with pytest.raises(TypeError, match="must hold TensorSpec"):
        sg.function(doubled, input_signature=[3])
    with pytest.raises(TypeError, match="list or tuple"):
        sg.function(doubled, input_signature=NUMBER)


def test_more_positional_arguments():
    f = sg.function(lambda *xs: sum(xs), input_signature=[NUMBER, NUMBER])
    assert float(f(1, 2)) == 3.0
    with pytest.raises(TypeError, match="one more argument"):
        f(1, 2, 3)
    with pytest.raises(TypeError, match="has 2 arguments, got 1"):
        f(1)


class Scaled:
    def __init__(self, scale):
        self.scale = sg.Variable(scale)

    @sg.function(input_signature=[NUMBER])
    def times(self, x):
        return x * self.scale


def test_methods(eagerly):
    model = Scaled(3.0)
    assert float(model.times(2)) == 6.0
    assert float(Scaled(5.0).times(x=2)) == 10.0
    with pytest.raises(TypeError, match="x must be"):
        model.times([1.0])


def test_float64_is_what_jax_makes_of_it():
    f = sg.function(doubled, input_signature=[TensorSpec([], sg.float64)])
    assert float(f(jnp.float32(2.0))) == float(f(2.0)) == 4.0


def test_signed_functions_can_be_pickled():
    f = pickle.loads(pickle.dumps(sg.function(doubled, input_signature=[VECTOR])))
    with pytest.raises(TypeError, match="x must be"):
        f(jnp.array([1]))


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]], ids=["one", "two"])
@pytest.mark.parametrize("within_function", [False, True], ids=["direct", "nested"])
def test_replicas_check_what_they_get(devices, within_function, eagerly):
    strategy = sg.distribute.MirroredStrategy(devices)
    f = sg.function(doubled, input_signature=[VECTOR])
    model = Scaled(3.0)

    def run(fn, x):
        return strategy.run(fn, args=(x,))

    call = sg.function(run) if within_function else run
    good = strategy.experimental_distribute_values_from_function(lambda _: np.float32([1.0]))
    bad = strategy.experimental_distribute_values_from_function(lambda _: np.int32([1]))
    for component in strategy.experimental_local_results(call(f, good)):
        np.testing.assert_array_equal(component, [2.0])
    for component in strategy.experimental_local_results(call(model.times, np.float32(2.0))):
        assert float(component) == 6.0
    with pytest.raises(TypeError, match="x must be"):
        call(f, bad)
    with pytest.raises(TypeError, match="x must be"):
        call(model.times, good)


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]], ids=["one", "two"])
def test_element_spec_of_a_distributed_dataset(devices, eagerly):
    strategy = sg.distribute.MirroredStrategy(devices)
    dataset = sg.data.Dataset.from_tensor_slices(np.arange(8.0, dtype=np.float32)).batch(4)
    distributed = strategy.experimental_distribute_dataset(dataset)

    @sg.function(input_signature=[distributed.element_spec])
    def step(x):
        return strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None)

    assert [float(step(x)) for x in distributed] == [6.0, 22.0]
    whole = strategy.experimental_distribute_values_from_function(lambda _: np.int32([1]))
    with pytest.raises(TypeError, match="x must be"):
        step(whole)
    with pytest.raises(TypeError, match="x must be"):
        step("abc")


def test_arguments_without_effect_are_taken():
    @sg.function(
        autograph=False,
        jit_compile=False,
        reduce_retracing=True,
        experimental_implements="name",
        experimental_autograph_options=None,
        experimental_attributes={"a": 1},
        experimental_relax_shapes=True,
        experimental_compile=True,
        experimental_follow_type_hints=True,
    )
    def f(x):
        return isinstance(x, jax.core.Tracer), x * 2

    assert f(jnp.float32(1.0)) == (True, 2.0)
    assert sg.function()(doubled)(2.0) == 4.0
    with pytest.raises(TypeError, match="nothing"):
        sg.function(doubled, nothing=True)
