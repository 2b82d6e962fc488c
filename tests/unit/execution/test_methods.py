"""Methods that are compiled functions, of instances of all kinds."""

from __future__ import annotations

import functools
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import jax.numpy as jnp

import stratagem as sg


class Trainer:
    def __init__(self, start=1.0):
        self.v = sg.Variable(start)

    @sg.function
    def step(self, x):
        return self.v.assign_add(x) * 1


class Doubled(Trainer):
    @sg.function
    def step(self, x):
        return 2 * super().step(x)

    @property
    def by_property(self):
        return self.step

    @functools.cached_property
    def own(self):
        return sg.function(self.add)

    def add(self, x):
        return self.v + x


def test_method_of_a_temporary_instance():
    for _ in range(3):
        assert float(Trainer().step(jnp.float32(2))) == 3
    assert float(Trainer(5.0).step(jnp.float32(2))) == 7


def test_method_taken_from_a_temporary_instance():
    step = Trainer().step
    gc.collect()
    assert [float(step(jnp.float32(1))) for _ in range(4)] == [2, 3, 4, 5]
    assert step.experimental_get_tracing_count() == 1


def test_method_of_a_temporary_instance_in_replicas():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    class Reader:
        def __init__(self):
            with strategy.scope():
                self.v = sg.Variable(2.0)

        @sg.function
        def step(self, x):
            return self.v * x

    for _ in range(2):
        result = strategy.run(Reader().step, args=(jnp.float32(3),))
        assert float(strategy.reduce("SUM", result, axis=None)) == 12


def test_method_that_overrides_and_calls_the_one_above():
    assert float(Doubled().step(jnp.float32(2))) == 6
    trainer = Doubled()
    assert float(trainer.by_property(jnp.float32(2))) == 6
    assert float(trainer.own(jnp.float32(2))) == 5
    assert float(Doubled().own(jnp.float32(2))) == 3
    assert float(Trainer.step(trainer, jnp.float32(1))) == 4


def test_method_of_an_instance_with_slots():
    class Slotted:
        __slots__ = ("v",)

        def __init__(self, v):
            self.v = v

        @sg.function
        def step(self, x):
            return self.v * x

    class WeaklyReferable(Slotted):
        __slots__ = ("__weakref__",)

    v = sg.Variable(2.0)
    for kind in (Slotted, WeaklyReferable):
        for _ in range(2):
            assert float(kind(v).step(jnp.float32(3))) == 6


def test_an_instance_goes_after_its_method_was_called():
    trainer = Trainer()
    trainer.step(jnp.float32(1))
    step = trainer.step
    assert (step.__name__, step.__self__) == ("step", trainer)
    assert step == trainer.step
    assert step.python_function.__func__ is Trainer.step.python_function
    gone = weakref.ref(trainer), weakref.ref(trainer.v)
    del trainer, step
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_temporary_instances_in_threads():
    with ThreadPoolExecutor(4) as threads:
        results = list(
            threads.map(lambda i: float(Trainer(float(i)).step(jnp.float32(1))), range(12))
        )
    assert results == [i + 1 for i in range(12)]


class Plain:
    def __init__(self, factor):
        self.factor = factor

    @sg.function
    def step(self, x):
        return self.factor * x


def test_a_method_travels_with_its_instance():
    step = cloudpickle.loads(cloudpickle.dumps(Plain(3.0).step))
    assert float(step(jnp.float32(2))) == 6
