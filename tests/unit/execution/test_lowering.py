"""``function.lower`` returns the program of a call and changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def test_the_program_has_the_collectives_of_the_call_and_nothing_runs(strategy):
    with strategy.scope():
        total = sg.Variable(1.0)

    @sg.function
    def step(x):
        total.assign_add(strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(x,))))

    rows = strategy.experimental_distribute_values_from_function(lambda _: np.ones(3, np.float32))
    assert "all_reduce" in step.lower(rows).as_text()
    compiled = step.lower(rows).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= 4  # the variable is donated
    assert float(total) == 1.0
    step(rows)
    assert float(total) == 7.0


def test_variables_are_created_once_by_lowering_and_calling():
    made = []

    @sg.function
    def step(x):
        if not made:
            made.append(sg.Variable(2.0))
        return made[0] * x

    assert step.lower(jnp.ones(())).out_info[0][0].shape == ()
    assert float(step(3.0)) == 6.0
    assert len(made) == 1


def test_methods_and_signatures():
    class Model:
        @sg.function
        def double(self, x):
            return x * 2

        @sg.function(input_signature=[sg.TensorSpec([None], sg.float32)])
        def triple(self, x):
            return x * 3

    model = Model()
    assert model.double.lower(jnp.ones(4)).out_info[0][0].shape == (4,)
    assert model.triple.lower([1.0, 2.0]).out_info[0][0].shape == (2,)
    with pytest.raises(sg.errors.SignatureMismatchError):
        model.triple.lower(jnp.ones((2, 2)))


def test_elements_are_put_back():
    iterator = iter(sg.data.Dataset.range(3))
    step = sg.function(lambda iterator: next(iterator) + 1)
    step.lower(iterator)
    assert int(step(iterator)) == 1


def test_what_runs_eagerly_or_inside_another_program_is_refused(strategy):
    step = sg.function(lambda x: x)
    ragged = strategy.experimental_distribute_values_from_function(
        lambda c: np.ones(1 + c.replica_id_in_sync_group)
    )
    with pytest.raises(sg.errors.UnsupportedError, match="runs as one program"):
        step.lower(ragged)
    with pytest.raises(sg.errors.UnsupportedError, match="runs as one program"):
        step.lower(sg.data.Dataset.range(3))
    dataset = sg.data.Dataset.range(3)
    with pytest.raises(sg.errors.UnsupportedError, match="loops over a dataset"):
        sg.function(lambda: list(dataset)).lower()
    with pytest.raises(sg.errors.OutOfRangeError):
        sg.function(next).lower(iter(sg.data.Dataset.range(0)))
    with pytest.raises(sg.errors.ContextError, match="inside another one"):
        jax.jit(lambda x: step.lower(x).as_text())(1.0)
    with pytest.raises(sg.errors.ContextError, match="inside another one"):
        sg.function(lambda: step.lower(1.0).as_text())()
