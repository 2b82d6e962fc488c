"""What a function has been called with, or has found in its closure, can go."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stratagem as sg


class Model:
    def __init__(self):
        self.w = sg.Variable(2.0)
        self.b = sg.Variable(1.0)

    def __call__(self, x):
        return self.w * x + self.b


def all_gone(*references):
    gc.collect()
    return [reference() for reference in references] == [None] * len(references)


def call_often(step, *args):
    for _ in range(4):
        step(*args)


def test_a_model_in_the_arguments_can_go():
    step = sg.function(lambda model, x: model(x))
    for _ in range(3):
        model = Model()
        call_often(step, model, jnp.float32(1))
        gone = [weakref.ref(model), weakref.ref(model.w)]
        del model
        assert all_gone(*gone)
    assert not step._programs._entries


def test_variables_in_the_arguments_can_go():
    step = sg.function(lambda v, x: v.assign_add(x))
    v = sg.Variable(1.0)
    call_often(step, v, jnp.float32(1))
    assert float(v) == 5
    gone = weakref.ref(v)
    del v
    assert all_gone(gone)
    assert not step._programs._entries


def test_variables_that_a_function_found_can_go_and_others_take_their_place():
    holder = {"model": Model()}

    @sg.function
    def step(x):
        holder["model"].w.assign_add(1.0)
        return holder["model"](x)

    call_often(step, jnp.float32(1))
    gone = [weakref.ref(holder["model"]), weakref.ref(holder["model"].w)]
    holder["model"] = None
    assert all_gone(*gone)
    holder["model"] = Model()
    assert float(step(jnp.float32(1))) == 4
    assert [float(step(jnp.float32(1))) for _ in range(3)] == [5, 6, 7]


def test_a_variable_that_is_returned_can_go():
    v = sg.Variable(1.0)
    holder = [v]
    step = sg.function(lambda: holder[0])
    for _ in range(3):
        assert step() is v
    gone = weakref.ref(v)
    holder[0] = v = None
    assert all_gone(gone)


def test_a_strategy_and_its_variables_can_go():
    step = sg.function(lambda strategy, v: strategy.reduce("SUM", strategy.run(lambda: v * 1)))
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = sg.Variable(1.0)
        call_often(step, strategy, v)
    gone = weakref.ref(strategy), weakref.ref(v)
    del strategy, v
    assert all_gone(*gone)


def test_an_iterator_that_a_function_draws_from_can_go():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = sg.data.Dataset.range(16).batch(2)
    holder = [iter(strategy.experimental_distribute_dataset(dataset))]

    @sg.function
    def step():
        return strategy.reduce("SUM", strategy.run(jnp.sum, args=(next(holder[0]),)), axis=None)

    assert [int(step()) for _ in range(3)] == [1, 5, 9]
    gone = weakref.ref(holder[0])
    holder[0] = iter(strategy.experimental_distribute_dataset(dataset))
    assert all_gone(gone)
    assert [int(step()) for _ in range(3)] == [1, 5, 9]


def test_functions_and_methods_as_arguments():
    model = Model()
    step = sg.function(lambda fn, x: fn(x))
    for _ in range(3):
        assert float(step(model.__call__, jnp.float32(1))) == 3
        assert float(step(jnp.negative, jnp.float32(1))) == -1
    assert step.experimental_get_tracing_count() == 2
    gone = weakref.ref(model)
    del model
    assert all_gone(gone)


def test_equal_values_in_the_arguments_share_a_program():
    step = sg.function(lambda name, sizes, x: x * len(sizes))
    for _ in range(3):
        step("".join(["a", "b"]), frozenset([1, 2]), jnp.float32(1))
    assert step.experimental_get_tracing_count() == 1


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: Any


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: Settings(x),
        lambda x: Settings((0, Settings(x))),
        lambda x: frozenset([x]),
        lambda x: frozenset([(x, "a")]),
        lambda x: Settings(frozenset([x])),
    ],
    ids=["alone", "dataclass", "nested", "frozenset", "tuple in it", "frozenset in a dataclass"],
)
@pytest.mark.parametrize("numbers", [(1, 1.0, True, 1 + 0j), (0.0, -0.0, 0, False)], ids=str)
def test_equal_numbers_of_other_types_or_signs_have_their_own_programs(wrap, numbers):
    step = sg.function(lambda value, x: (repr(value), x))
    for _ in range(2):
        for number in numbers:
            assert step(wrap(number), jnp.float32(1))[0] == repr(wrap(number))
    assert step.experimental_get_tracing_count() == len(numbers)


def test_arguments_that_come_and_go_leave_nothing_behind():
    step = sg.function(lambda fn, x: fn(x))
    for i in range(5):
        assert float(step(lambda x, i=i: x * i, jnp.float32(2))) == 2 * i
    gc.collect()
    assert not step._programs._entries


@pytest.mark.parametrize("shape", [(), (2,)])
def test_variables_are_told_from_those_that_have_gone(shape):
    """A variable at the address of one that has gone is another variable."""
    step = sg.function(lambda v: v.assign_add(jnp.ones(shape)) * 1)
    for start in range(20):
        v = sg.Variable(jnp.full(shape, float(start)))
        assert float(jnp.max(step(v))) == start + 1
        del v


def test_programs_are_compiled_once():
    compilations = []

    def listen(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            compilations.append(event)

    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = sg.Variable(jnp.ones(3))

    def make(factor):
        @sg.function
        def step(x):
            v.assign_add(x)
            total = strategy.run(lambda: jnp.sum(v.value() * x) * factor)
            return strategy.reduce("SUM", total, axis=None)

        return step

    x = jnp.ones(3)
    placed = jax.device_put(x, strategy.replica_group.replicated)
    make(2)(x)  # compiles copying of a variable too
    step = make(3)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for _ in range(3):
            step(x)
        step(placed)
        step(x)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compilations) == 2  # one for arrays on one device, one for arrays that are placed
