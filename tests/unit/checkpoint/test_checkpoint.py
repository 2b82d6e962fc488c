"""Checkpoints of variables and optimizers of this process."""

import os
import time

import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.checkpoint.format.checkpoint_directories import numbered_checkpoint


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
    checkpoint.sync()
    assert {p.name for p in tmp_path.iterdir()} == {"ckpt-1"}
    for variable in variables.values():
        variable.assign(0.0)
    checkpoint.restore(path)
    assert [float(v) for v in variables.values()] == [1, 2, 3]


def test_other_objects_are_refused():
    with pytest.raises(sg.errors.InvalidArgumentError, match="got str for 'model/text'"):
        sg.train.Checkpoint(model={"text": "words"})
    with pytest.raises(sg.errors.InvalidArgumentError, match=r"got ndarray for 'names'"):
        sg.train.Checkpoint(names=np.array(["a"]))


# --- names ----------------------------------------------------------------------------------------


def test_names_that_clash_are_refused():
    v, w = sg.Variable(1.0), sg.Variable(2.0)
    optimizer = sg.train.Optimizer(optax.adam(0.1))
    with pytest.raises(
        ValueError, match=r"'m/a/b' for both \['m'\]\['a'\]\['b'\] and \['m'\]\['a/b'\]"
    ):
        sg.train.Checkpoint(m={"a/b": v, "a": {"b": w}})
    with pytest.raises(
        ValueError, match="begin with an Optimizer's name are reserved for its state"
    ):
        sg.train.Checkpoint(**{"o": optimizer, "o/here/0": v})
    with pytest.raises(
        ValueError, match="begin with an Optimizer's name are reserved for its state"
    ):
        sg.train.Checkpoint(**{"o": optimizer, "o/here": sg.train.Optimizer(optax.sgd(0.1))})
    with pytest.raises(
        ValueError,
        match=r"have the same key 'a\.b' in the Orbax format: \['a'\]\['b'\] and \['a\.b'\]",
    ):
        sg.train.Checkpoint(**{"a": {"b": v}, "a.b": w})
    for name in ("save_counter", "@1", "\ud800"):
        with pytest.raises(ValueError, match="Rename the object"):
            sg.train.Checkpoint(**{name: v})


def test_names_that_look_alike_are_kept_apart(tmp_path):
    names = [
        "a",
        "a/b",
        "a//b",
        "/a",
        "a/",
        "",
        "%",
        "a%2Fb",
        "a.npy",
        "ä",
        "a/0",
        "x" * 200,
    ]
    variables = {name: sg.Variable(float(k)) for k, name in enumerate(names)}
    path = sg.train.Checkpoint(**variables).save(tmp_path / "ckpt")
    restored = {name: sg.Variable(-1.0) for name in names}
    sg.train.Checkpoint(**restored).restore(path)
    assert [float(v) for v in restored.values()] == list(range(len(names)))


# --- optimizers -----------------------------------------------------------------------------------

ADAM, MOMENTUM, RMSPROP = optax.adam(0.1), optax.sgd(0.1, momentum=0.9), optax.rmsprop(0.1)


class Training:
    """Two variables of one shape, and an optimizer that moves them."""

    def __init__(self, strategy, transformation, *, steps=0, compiled=False, swapped=False):
        with strategy.scope():
            self.variables = [sg.Variable([1.0, 2.0]), sg.Variable([3.0, 4.0])]
        self.optimizer = sg.train.Optimizer(transformation)
        w, b = self.variables
        self.checkpoint = sg.train.Checkpoint(model={"w": w, "b": b}, optimizer=self.optimizer)
        self._order = [1, 0] if swapped else [0, 1]
        self._step = sg.function(self._take_step) if compiled else self._take_step
        self.steps(steps)

    def _take_step(self):
        gradients = [self.variables[0] * 2.0, self.variables[1] - 1.0]
        self.optimizer.apply_gradients([(gradients[k], self.variables[k]) for k in self._order])

    def steps(self, count):
        for _ in range(count):
            self._step()

    def everything(self):
        return [v.numpy().tolist() for v in (*self.variables, *self.optimizer.variables)]


@pytest.mark.parametrize("built", [0, 2])
@pytest.mark.parametrize(
    ("saved", "into", "message"),
    [
        (ADAM, MOMENTUM, r"TraceState\.trace.*has.*ScaleByAdamState\.count"),
        (RMSPROP, MOMENTUM, r"TraceState\.trace.*has.*ScaleByRmsState\.nu"),
        (ADAM, optax.adabelief(0.1), r"ScaleByBeliefState.*has.*ScaleByAdamState"),
        (optax.sgd(0.1), ADAM, r"ScaleByAdamState.*the checkpoint has \['iterations'\]"),
        (ADAM, optax.sgd(0.1), r"the state \['iterations'\], but the checkpoint has"),
    ],
    ids=[
        "adam to momentum",
        "rmsprop to momentum",
        "adam to adabelief",
        "sgd to adam",
        "adam to sgd",
    ],
)
def test_the_state_of_another_optimizer_is_refused(strategy, tmp_path, saved, into, message, built):
    path = Training(strategy, saved, steps=3).checkpoint.save(tmp_path / "ckpt")
    other = Training(strategy, into, steps=built)
    before = other.everything()
    with pytest.raises(sg.errors.InvalidArgumentError, match=message):
        other.checkpoint.restore(path)
    assert other.everything() == before
    other.steps(1)  # goes on with its own state


@pytest.mark.parametrize("built", [0, 2])
def test_state_is_that_of_its_variable_in_any_order(strategy, tmp_path, built):
    first = Training(strategy, ADAM, steps=3)
    path = first.checkpoint.save(tmp_path / "ckpt")
    other = Training(strategy, ADAM, steps=built, swapped=True)
    other.checkpoint.restore(path)
    for training in (first, other):
        training.steps(2)
    assert other.everything()[:2] == first.everything()[:2]


@pytest.mark.parametrize("built", [0, 2])
def test_state_for_other_variables_is_refused(strategy, tmp_path, built):
    path = Training(strategy, ADAM, steps=3).checkpoint.save(tmp_path / "ckpt")
    other = Training(strategy, ADAM)
    with strategy.scope():
        variables = [*other.variables, sg.Variable([0.0, 0.0])]

    def step():
        other.optimizer.apply_gradients([(v * 1.0, v) for v in variables])

    for _ in range(built):
        step()
    before = other.everything()
    if built:
        with pytest.raises(ValueError, match=r"the checkpoint has none for \['Variable"):
            other.checkpoint.restore(path)
        assert other.everything() == before
    else:
        other.checkpoint.restore(path)
        with pytest.raises(ValueError, match=r"the checkpoint has none for \['Variable"):
            step()


@pytest.mark.parametrize("compiled", [False, True])
def test_state_survives_a_save_before_the_first_step(strategy, tmp_path, compiled):
    first = Training(strategy, ADAM, steps=3, compiled=compiled)
    path = first.checkpoint.save(tmp_path / "ckpt")
    second = Training(strategy, ADAM)
    second.checkpoint.restore(path)
    path = second.checkpoint.save(tmp_path / "ckpt")
    third = Training(strategy, ADAM, compiled=compiled)
    third.checkpoint.restore(path)
    for training in (first, third):
        training.steps(2)
    assert third.everything() == first.everything()
    assert int(third.optimizer.variables[0]) == 5


@pytest.mark.parametrize("compiled", [False, True])
def test_restored_state_survives_a_first_step_that_fails(strategy, tmp_path, compiled):
    first = Training(strategy, ADAM, steps=3, compiled=compiled)
    path = first.checkpoint.save(tmp_path / "ckpt")
    again = Training(strategy, ADAM)
    again.checkpoint.restore(path)

    def fail():
        again.steps(1)
        raise ArithmeticError("after the step")

    with pytest.raises(ArithmeticError):
        sg.function(fail)()
    for training in (first, again):
        training.steps(2)
    np.testing.assert_allclose(again.everything()[0], first.everything()[0], rtol=1e-6)
    assert int(again.optimizer.variables[0]) == 5


@pytest.mark.parametrize("compiled", [False, True])
def test_a_checkpoint_from_before_the_first_step_resets_the_state(strategy, tmp_path, compiled):
    training = Training(strategy, ADAM, compiled=compiled)
    path = training.checkpoint.save(tmp_path / "ckpt")
    training.steps(3)
    after = training.everything()
    training.checkpoint.restore(path)
    assert int(training.optimizer.variables[0]) == 0
    training.steps(3)
    assert training.everything() == after
    # Also where state was restored, but not used yet.
    used = training.checkpoint.save(tmp_path / "ckpt")
    fresh = Training(strategy, ADAM, compiled=compiled)
    fresh.checkpoint.restore(used)
    fresh.checkpoint.restore(path)
    fresh.steps(3)
    assert fresh.everything() == after


# --- refusals change nothing ----------------------------------------------------------------------


def variables_of_every_kind():
    mirrored = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    central = sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    on_read = sg.VariableSynchronization.ON_READ
    made = {"plain": sg.Variable([1.0, 2.0])}
    with mirrored.scope():
        made["mirrored"] = sg.Variable([1.0, 2.0])
        for aggregation in (sg.VariableAggregation.SUM, sg.VariableAggregation.MEAN):
            made[f"on_read_{aggregation.name}"] = sg.Variable(
                3.0, synchronization=on_read, aggregation=aggregation
            )
    with central.scope():
        made["central"] = sg.Variable([[1, 2]])
    mirrored.run(lambda: made["on_read_SUM"].assign_add(5.0))
    return made


def all_components(variables):
    strategy = sg.distribute.get_strategy()
    return {
        name: [np.asarray(part).tolist() for part in strategy.experimental_local_results(v)]
        for name, v in variables.items()
    }


@pytest.mark.parametrize(
    "kind", ["plain", "mirrored", "on_read_SUM", "on_read_MEAN", "central", "optimizer"]
)
def test_a_refusal_changes_nothing(strategy, tmp_path, kind):
    variables = variables_of_every_kind()
    training = Training(strategy, ADAM, steps=1)
    held = {**variables, "optimizer": training.optimizer, "of_training": training.variables}
    path = sg.train.Checkpoint(**held).save(tmp_path / "ckpt")
    for variable in variables.values():
        variable.assign(np.full(variable.shape, 7, variable.dtype))
    training.steps(1)
    before = all_components(variables), training.everything()

    def check(held, error, message):
        with pytest.raises(error, match=message):
            sg.train.Checkpoint(**held).restore(path)
        assert (all_components(variables), training.everything()) == before

    if kind != "optimizer":
        other_shape, other_type = sg.Variable(np.ones((3, 3), np.float32)), sg.Variable([True])
        for other in (other_shape, other_type):
            check({**held, kind: other}, ValueError, f"{kind!r} is .* but the checkpoint has")
    missing = {"missing": held[kind]}
    check({**held, **missing}, FileNotFoundError, "missing")
    sg.train.Checkpoint(**held).restore(path)
    assert float(variables["on_read_SUM"]) == 16


def test_only_outside_of_replicas_and_functions(strategy, tmp_path):
    plain = sg.Variable(0.0)
    with strategy.scope():
        mirrored = sg.Variable(1.0)
    checkpoint = sg.train.Checkpoint(a=plain, b=mirrored)
    path = checkpoint.save(tmp_path / "ckpt")
    plain.assign(5.0)

    @sg.function
    def restore():
        checkpoint.restore(path)

    for call in (
        restore,
        lambda: strategy.run(checkpoint.restore, args=(path,)),
        lambda: strategy.run(checkpoint.save, args=(tmp_path / "ckpt",)),
    ):
        with pytest.raises(sg.errors.ContextError, match="Call it outside"):
            call()
    assert float(plain) == 5
    checkpoint.sync()
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-1"]


# --- directories ----------------------------------------------------------------------------------


def test_several_with_one_prefix_take_different_numbers(tmp_path):
    """Somebody else writes one, and another one is there."""
    checkpoint = sg.train.Checkpoint(v=sg.Variable(1.0))
    theirs, number = numbered_checkpoint(tmp_path / "ckpt", after=0)
    assert number == 1
    (tmp_path / "ckpt-2").mkdir()
    assert checkpoint.save(tmp_path / "ckpt") == str(tmp_path / "ckpt-3")
    checkpoint.sync()
    theirs.publish({}, time.time_ns())
    assert {p.name for p in tmp_path.iterdir()} == {"ckpt-1", "ckpt-2", "ckpt-3"}


def test_the_latest_of_equal_age_has_the_highest_number(tmp_path):
    checkpoint = sg.train.Checkpoint(v=sg.Variable(1.0))
    for _ in range(10):
        path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    for index in tmp_path.glob("*/_METADATA"):
        os.utime(index, (1, 1))
    assert sg.train.latest_checkpoint(tmp_path) == path == str(tmp_path / "ckpt-10")


def test_a_later_version_is_no_damage(tmp_path, monkeypatch):
    v = sg.Variable(1.0)
    monkeypatch.setattr("stratagem._src.checkpoint.format.tree_metadata._VERSION", 4)
    checkpoint = sg.train.Checkpoint(v=v)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    monkeypatch.undo()
    with pytest.raises(sg.errors.InvalidArgumentError, match="a later version of stratagem"):
        checkpoint.restore(path)


def test_nothing_to_restore_at_the_first_start(tmp_path):
    v = sg.Variable(1.0)
    checkpoint = sg.train.Checkpoint(v=v)
    status = checkpoint.restore(sg.train.latest_checkpoint(tmp_path)).expect_partial()
    assert float(v) == 1
    for check in (status.assert_consumed, status.assert_existing_objects_matched):
        with pytest.raises(AssertionError, match="no checkpoint"):
            check()


def test_a_status_tells_what_was_left(strategy, tmp_path):
    with strategy.scope():
        v, w = sg.Variable(1.0), sg.Variable(2.0)
    optimizer = sg.train.Optimizer(optax.adam(0.1))
    optimizer.apply_gradients([(1.0, v)])
    whole = sg.train.Checkpoint(v=v, w=w, optimizer=optimizer)
    path = whole.save(tmp_path / "ckpt")
    whole.restore(path).assert_consumed().expect_partial()
    partly = sg.train.Checkpoint(v=v, optimizer=optimizer).restore(path)
    partly.assert_existing_objects_matched().assert_nontrivial_match()
    with pytest.raises(AssertionError, match=r"has \['w'\], which"):
        partly.assert_consumed()
    with pytest.raises(AssertionError, match=r"has \['optimizer'\], which"):
        sg.train.Checkpoint(v=v, w=w).restore(path).assert_consumed()


def test_objects_are_attributes(tmp_path):
    step, model = sg.Variable(0), {"w": sg.Variable(1.0)}
    checkpoint = sg.train.Checkpoint(step=step, model=model)
    checkpoint.step.assign_add(3)
    assert (int(step), checkpoint.model) == (3, model)
    checkpoint.epoch = sg.Variable(7)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.epoch.assign(0)
    checkpoint.restore(path)
    assert int(checkpoint.epoch) == 7
    with pytest.raises(AttributeError, match=r"'stepp'.*\['epoch', 'model', 'step'\]"):
        _ = checkpoint.stepp
    with pytest.raises(AttributeError, match="Rename"):
        checkpoint.save = step
    with pytest.raises(ValueError, match="got str for 'count'"):
        checkpoint.count = "3"
    with pytest.raises(AttributeError):
        _ = checkpoint.count
