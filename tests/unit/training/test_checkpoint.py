"""Checkpoints of the other strategies' variables."""

import numpy as np
import optax
import pytest

import stratagem as sg


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def test_variables_of_every_placement(strategy, tmp_path):
    with strategy.scope():
        mirrored = sg.Variable([1.0, 2.0])
        per_replica = sg.Variable(
            3.0,
            synchronization=sg.VariableSynchronization.ON_READ,
            aggregation=sg.VariableAggregation.SUM,
        )
    plain = sg.Variable([[1, 2], [3, 4]])
    variables = [mirrored, per_replica, plain]
    checkpoint = sg.train.Checkpoint(variables=variables)
    before = [v.numpy() for v in variables]
    path = checkpoint.save(tmp_path / "ckpt")
    for variable in variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    checkpoint.restore(path)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("built", [False, True])
def test_an_optimizer_goes_on_as_before(strategy, tmp_path, built):
    def make():
        with strategy.scope():
            variable = sg.Variable([1.0, 2.0])
        optimizer = sg.train.Optimizer(optax.adam(0.1))
        return variable, optimizer, sg.train.Checkpoint(model={"w": variable}, optimizer=optimizer)

    def steps(variable, optimizer, count):
        for k in range(count):
            optimizer.apply_gradients([(np.array([1.0, -k]), variable)])

    variable, optimizer, checkpoint = make()
    steps(variable, optimizer, 3)
    path = checkpoint.save(tmp_path / "ckpt")
    steps(variable, optimizer, 2)
    again, optimizer_again, checkpoint_again = make()
    if built:
        steps(again, optimizer_again, 1)
    checkpoint_again.restore(path)
    steps(again, optimizer_again, 2)
    np.testing.assert_allclose(again.numpy(), variable.numpy(), rtol=1e-6)


def test_names_make_no_way_out_of_the_directory(tmp_path):
    variables = {"..": sg.Variable(1.0), "a/b": sg.Variable(2.0), "": sg.Variable(3.0)}
    checkpoint = sg.train.Checkpoint(**{"/etc": variables})
    path = checkpoint.save(tmp_path / "ckpt")
    assert {p.name for p in tmp_path.iterdir()} == {"ckpt-1"}
    for variable in variables.values():
        variable.assign(0.0)
    checkpoint.restore(path)
    assert [float(v) for v in variables.values()] == [1, 2, 3]


def test_other_objects_are_refused():
    with pytest.raises(sg.errors.InvalidArgumentError, match="got int for 'model/steps'"):
        sg.train.Checkpoint(model={"steps": 3})
