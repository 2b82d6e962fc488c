"""``ElasticFit`` where there is nobody to lose; lost workers are in ``tests/multiprocess``."""

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.training.elastic.elastic_loop import ElasticLoop, first_place

keras = sg.keras


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def model(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


class Run:
    """A run of an elastic function that goes on at some place."""

    def __init__(self, strategy, *loops):
        self.reached = []
        self.arrivals = 0
        place = {**first_place(1), "loops": [list(level) for level in loops]}
        self.loop = ElasticLoop(
            strategy, place, lambda place: self.reached.append(place["loops"]), self._arrive
        )

    def _arrive(self):
        self.arrivals += 1

    def fit(self, model, *callbacks, epochs=5, **kwargs):
        """Returns the numbers of the epochs that were trained."""
        x = np.ones((4, 1), np.float32)
        every = [*callbacks, sg.train.ElasticFit(self.loop)]
        return model.fit(x, x, epochs=epochs, verbose=0, callbacks=every, **kwargs).epoch


def test_every_epoch_ends_at_a_boundary(strategy, model):
    run = Run(strategy)
    assert run.fit(model, epochs=3) == [0, 1, 2]
    assert run.reached == [[[0, 1]], [[0, 2]], [[0, 3]]]


def test_it_goes_on_with_the_epoch_that_was_at_work(strategy, model):
    run = Run(strategy, (0, 3))
    assert run.fit(model) == [3, 4]
    assert run.arrivals == 1
    assert run.reached == [[[0, 4]], [[0, 5]]]


def test_a_fit_that_came_to_its_end_is_not_repeated_and_the_next_one_goes_on(strategy, model):
    run = Run(strategy, (1, 2))
    assert run.fit(model) == []
    assert run.fit(model) == [2, 3, 4]
    assert run.fit(model) == [0, 1, 2, 3, 4]


def test_an_epoch_to_begin_with_is_counted_from_the_first(strategy, model):
    assert Run(strategy).fit(model, initial_epoch=3) == [3, 4]
    run = Run(strategy, (0, 4))
    assert run.fit(model, initial_epoch=3) == [4]
    assert run.reached == [[[0, 5]]]


def test_a_fit_that_was_ended_early_is_over(strategy, model):
    class EndEarly(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    run = Run(strategy)
    assert run.fit(model, EndEarly()) == [0, 1]
    assert run.reached[-1] == [[0, 5]]
    run.reached.clear()
    assert run.fit(model, epochs=1) == [0]
    assert run.reached == [[[1, 1]]]


def test_a_job_that_was_started_again_goes_on_from_a_backup(strategy, model, tmp_path):
    class Fail(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("all of it is lost")

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)

    with pytest.raises(RuntimeError, match="all of it is lost"):
        Run(strategy).fit(model, backup(), Fail())
    run = Run(strategy)
    assert run.fit(model, backup()) == [3, 4]
    assert run.reached[-1] == [[0, 5]]
    # Within a job its own place counts, not that of the backup.
    assert Run(strategy, (0, 4)).fit(model, backup()) == [4]


def test_what_other_callbacks_change_is_kept_at_the_boundary(strategy, model):
    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.5 ** (epoch + 1)

    rates = []
    loop = ElasticLoop(
        strategy,
        first_place(1),
        lambda _: rates.append(float(model.optimizer.learning_rate)),
        lambda: None,
    )
    x = np.ones((4, 1), np.float32)
    callbacks = [Halve(), sg.train.ElasticFit(loop)]
    model.fit(x, x, epochs=2, verbose=0, callbacks=callbacks)
    assert rates == [0.5, 0.25]
