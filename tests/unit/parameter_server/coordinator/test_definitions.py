"""Functions are known by themselves as long as they live, and are not kept alive."""

import gc
import signal
import types
import weakref

import pytest

from stratagem._src.parameter_server.protocol.definition import Definitions


@pytest.fixture
def definitions():
    return Definitions(lambda number: None)


class Model:
    def step(self):
        return 1


def test_the_same_function_has_one_definition(definitions):
    model, other = Model(), Model()
    assert definitions.of_function(model.step) is definitions.of_function(model.step)
    assert definitions.of_function(model.step) is not definitions.of_function(other.step)
    assert definitions.of_function(abs) is definitions.of_function(abs)


def test_functions_that_take_the_place_of_others(definitions):
    numbers = {definitions.of_function(lambda i=i: i).number for i in range(100)}
    assert len(numbers) == 100
    model = Model()
    methods = {
        definitions.of_function(types.MethodType(lambda self, i=i: i, model)).number
        for i in range(100)
    }
    assert len(methods) == 100
    assert not definitions._by_function


@pytest.mark.parametrize("refers_to_itself", [False, True])
def test_a_model_is_not_kept_alive_by_its_method(definitions, refers_to_itself):
    model = Model()
    if refers_to_itself:
        model.step = types.MethodType(lambda self, model=model: model is self, model)
    definitions.of_function(model.step)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_an_exception_of_a_signal_handler_is_not_taken_for_one_of_the_object(definitions):
    class Alarm(Exception):
        pass

    class Interrupted:
        def __reduce__(self):
            signal.raise_signal(signal.SIGUSR1)
            return Interrupted, ()

    def handler(*_):
        raise Alarm

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Alarm):
            definitions.make("function", Interrupted())
    finally:
        signal.signal(signal.SIGUSR1, before)
