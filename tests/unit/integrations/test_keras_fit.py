"""``fit`` and the like under a strategy: the same history and weights as on one device."""

import jax
import numpy as np
import pytest
from keras_training import (
    KERAS_ARRAYS,
    assert_same,
    keras,
    make_data,
    mirrored,
    scope_of,
    small_model,
)

import stratagem as sg
from stratagem._src.telemetry.measurement.recorder import begin_recording, end_recording

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)

X, Y = make_data()
WEIGHTS = np.linspace(0.5, 2.0, len(X), dtype=np.float32)


def fitted(model, **options):
    """Trains, and returns all numbers of it."""
    options = {"x": X, "y": Y, "batch_size": 8, "epochs": 2, "verbose": 0, **options}
    history = model.fit(**options)
    return history.history, model.get_weights()


# --- what is trained --------------------------------------------------------------------------------


def last_batch_not_divisible(strategy):
    with scope_of(strategy):
        model = small_model(
            keras.layers.Dense(4, use_bias=False), keras.layers.BatchNormalization()
        )
        model.compile("sgd", "mse", metrics=["mae"])
    return fitted(model, x=X[:21], y=Y[:21])


def dropout_and_noise(strategy):
    with scope_of(strategy):
        model = small_model(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1))
        model.compile("sgd", "mse")
    return fitted(model)


def sample_weight_and_split(strategy):
    with scope_of(strategy):
        model = small_model()
        model.compile("sgd", "mse", weighted_metrics=["mae"])
    return fitted(model, sample_weight=WEIGHTS, validation_split=1 / 3)


def class_weight(strategy):
    labels = (Y[:, 0] > 0.5).astype(np.int32)
    with scope_of(strategy):
        model = small_model()
        model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["AUC"])
    return fitted(model, y=labels, class_weight={0: 0.5, 1: 2.0})


def validation_data_and_steps(strategy):
    with scope_of(strategy):
        model = small_model()
        model.compile("sgd", "mse")
    return fitted(
        model,
        steps_per_epoch=1,
        epochs=4,
        initial_epoch=1,
        validation_data=(X[:10], Y[:10], WEIGHTS[:10]),
        validation_batch_size=5,
        validation_freq=2,
    )


def several_steps_in_one(strategy):
    with scope_of(strategy):
        model = small_model()
        model.compile("sgd", "mse", steps_per_execution=2)
    return fitted(model), model.predict(X, batch_size=8, verbose=0)


def schedule_and_accumulation(strategy):
    with scope_of(strategy):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        model = small_model()
        optimizer = keras.optimizers.SGD(schedule, momentum=0.9, gradient_accumulation_steps=2)
        model.compile(optimizer, "mse")
    return fitted(model), [np.asarray(v) for v in optimizer.variables]


def averaged_and_clipped(strategy):
    with scope_of(strategy):
        model = small_model()
        model.compile(keras.optimizers.Adam(0.1, use_ema=True, global_clipnorm=0.5), "mse")
    return fitted(model)


def half_precision(strategy):
    """The scale of the loss is too large for the first steps, which are left out."""
    with scope_of(strategy):
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, dtype="mixed_float16"),
                keras.layers.Dense(1, dtype="float32"),
            ]
        )
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.01), initial_scale=2.0**16.5
        )
        model.compile(optimizer, "mse")
    numbers = fitted(model, x=X[:8], y=Y[:8], epochs=9)
    scale = float(optimizer.dynamic_scale)
    assert scale < 2.0**16
    assert int(optimizer.inner_optimizer.iterations) > 4
    return numbers, scale


def half_precision_of_more_range(strategy):
    with scope_of(strategy):
        model = small_model(keras.layers.Dense(8, dtype="mixed_bfloat16"))
        model.compile("sgd", "mse")
    return fitted(model)


def frozen_layer_and_added_loss(strategy):
    class Penalty(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
            return x

    with scope_of(strategy):
        frozen = keras.layers.Dense(3, kernel_regularizer="l2")
        model = small_model(frozen, keras.layers.Dense(3), Penalty())
        frozen.trainable = False
        model.compile("sgd", "mse")
    return fitted(model)


def several_inputs_and_outputs(strategy):
    with scope_of(strategy):
        left, right = keras.Input((3,), name="left"), keras.Input((1,), name="right")
        both = keras.layers.Concatenate()([left, right])
        total = keras.layers.Dense(1, name="total")(both)
        sign = keras.layers.Dense(1, activation="sigmoid", name="sign")(both)
        model = keras.Model({"left": left, "right": right}, {"total": total, "sign": sign})
        model.compile(
            "sgd",
            {"total": "mse", "sign": "binary_crossentropy"},
            loss_weights={"total": 1.0, "sign": 0.5},
            metrics={"sign": ["accuracy"]},
        )
    inputs = {"left": X, "right": Y}
    numbers = fitted(model, x=inputs, y={"total": Y, "sign": (Y > 0).astype(np.float32)})
    return numbers, model.predict(inputs, verbose=0)


def own_train_step(strategy):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.distance = keras.metrics.Mean(name="distance")

        def call(self, x):
            return self.dense(x)

        @property
        def metrics(self):
            return [self.distance]

        def loss_of(self, trainable, non_trainable, x, y):
            predicted, non_trainable = self.stateless_call(trainable, non_trainable, x)
            return keras.ops.mean(keras.ops.abs(y - predicted)), non_trainable

        def train_step(self, state, data):
            trainable, non_trainable, optimizer_state, metrics = state
            x, y = data
            gradient = jax.value_and_grad(self.loss_of, has_aux=True)
            (loss, non_trainable), gradients = gradient(trainable, non_trainable, x, y)
            trainable, optimizer_state = self.optimizer.stateless_apply(
                optimizer_state, gradients, trainable
            )
            metrics = self.distance.stateless_update_state(metrics, loss)
            logs = {"distance": self.distance.stateless_result(metrics)}
            return logs, (trainable, non_trainable, optimizer_state, metrics)

    with scope_of(strategy):
        model = Own()
        model.compile("sgd")
    return fitted(model)


def eagerly(strategy):
    with scope_of(strategy):
        model = small_model(keras.layers.Dropout(0.5))
        model.compile("sgd", "mse", run_eagerly=True)
    return fitted(model, epochs=1), model.predict(X[:5], verbose=0)


def one_batch_at_a_time(strategy):
    with scope_of(strategy):
        model = small_model(keras.layers.Dense(4))
        model.compile("sgd", "mse", metrics=["mae"])
    trained = [model.train_on_batch(X[:8], Y[:8], sample_weight=WEIGHTS[:8]) for _ in range(2)]
    tested = model.test_on_batch(X[:7], Y[:7], return_dict=True)
    predicted = model.predict_on_batch(X[:8]), model.predict_on_batch(X[:7])
    return trained, tested, predicted, model.get_weights()


def built_by_the_first_batch(strategy):
    with scope_of(strategy):
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model.predict(X[:6], verbose=0), fitted(model), model.evaluate(X, Y, verbose=0)


def callbacks(strategy):
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([logs["loss"], float(np.sum(self.model.get_weights()[0]))])

    with scope_of(strategy):
        model = small_model()
        model.compile("sgd", "mse")
    numbers = fitted(
        model,
        epochs=6,
        validation_data=(X[:8], -Y[:8]),
        callbacks=[
            Watch(),
            keras.callbacks.EarlyStopping(
                "val_loss", patience=2, restore_best_weights=True, start_from_epoch=1
            ),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
        ],
    )
    return numbers, seen


QUICK = [
    last_batch_not_divisible,
    own_train_step,
    one_batch_at_a_time,
    callbacks,
    dropout_and_noise,
]
BREADTH = [
    sample_weight_and_split,
    class_weight,
    validation_data_and_steps,
    several_steps_in_one,
    schedule_and_accumulation,
    averaged_and_clipped,
    frozen_layer_and_added_loss,
    several_inputs_and_outputs,
    eagerly,
    built_by_the_first_batch,
]


def named(functions):
    return [pytest.param(function, id=function.__name__) for function in functions]


@pytest.mark.parametrize("train", named(QUICK))
def test_two_replicas_are_as_one_device(train):
    assert_same(train, mirrored(2))


@pytest.mark.slow
@pytest.mark.parametrize("train", named(BREADTH))
def test_two_replicas_are_as_one_device_in_breadth(train):
    assert_same(train, mirrored(2))


@pytest.mark.slow
@pytest.mark.parametrize("train", named([half_precision, half_precision_of_more_range]))
def test_half_precision_is_as_on_one_device_to_its_own_rounding(train):
    assert_same(train, mirrored(2), rtol=1e-2, atol=1e-3)


def tpu(num_cores):
    topology = sg.tpu.experimental.Topology(jax.devices("cpu"))
    assignment = sg.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=[1, 1, 1, num_cores], num_replicas=2
    )
    return sg.distribute.TPUStrategy(experimental_device_assignment=assignment)


def central(devices):
    return sg.distribute.CentralStorageStrategy(devices, "CPU:0")


@pytest.mark.parametrize("train", named([one_batch_at_a_time, callbacks]))
def test_weights_on_one_device_are_trained_by_two(train):
    assert_same(train, central(["CPU:1", "CPU:2"]))


STRATEGIES = {
    "one_device": lambda: sg.distribute.OneDeviceStrategy("CPU:1"),
    "mirrored4": lambda: mirrored(4),
    "tpu2": lambda: tpu(1),
    "tpu2x2": lambda: tpu(2),
    "one_worker": lambda: sg.distribute.MultiWorkerMirroredStrategy(),
    "central2": lambda: central(["CPU:0", "CPU:1"]),
    "central_apart": lambda: central(["CPU:1", "CPU:2"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("train", named([last_batch_not_divisible, one_batch_at_a_time, callbacks]))
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_every_strategy_is_as_one_device(train, make):
    assert_same(train, make())


# --- callbacks after each batch ---------------------------------------------------------------------


class _CallbackList(keras.callbacks.CallbackList):
    """Counts how often batches are handed to another thread, for callbacks to look at."""

    handed = 0

    def _async_dispatch(self, function, *args):
        self.handed += 1
        super()._async_dispatch(function, *args)


def _handed(model, *callbacks):
    listed = _CallbackList(list(callbacks), add_history=True, model=model)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=listed)
    return listed.handed


def test_batches_are_handed_to_no_callback_that_does_not_look_at_them():
    strategy = mirrored(2)
    with strategy.scope():
        model = small_model()
        model.compile("sgd", "mse")
    assert _handed(model) == 0


@pytest.mark.parametrize("method", ["on_train_batch_end", "on_batch_end"])
def test_callbacks_that_look_at_batches_see_all_of_them(method):
    seen = []

    class Looks(keras.callbacks.Callback):
        async_safe = True

    setattr(Looks, method, lambda self, batch, logs=None: seen.append((batch, logs["loss"])))
    strategy = mirrored(2)
    with strategy.scope():
        model = small_model()
        model.compile("sgd", "mse")
    assert _handed(model, Looks()) == 3
    assert sorted(batch for batch, _ in seen) == [0, 1, 2]  # Keras calls such callbacks in threads
    assert all(isinstance(loss, float) for _, loss in seen)


def test_models_of_no_strategy_are_left_to_keras():
    model = small_model()
    model.compile("sgd", "mse")
    assert _handed(model) == 3


# --- what is measured -------------------------------------------------------------------------------


def test_steps_examples_and_figures_of_a_fit_are_measured():
    observer = begin_recording()
    try:
        with scope_of(mirrored(2)):
            model = small_model()
            model.compile("sgd", "mse", metrics=["mae"])
        history, _ = fitted(model, x=X[:21], y=Y[:21], validation_data=(X[21:], Y[21:]))
    finally:
        end_recording()
    interval = observer.take()
    assert (interval.steps, interval.examples) == (2 * (3 + 1), 2 * (21 + 3))
    assert interval.input_seconds > 0
    reported = {name: float(value) for name, value in observer.take_reported().items()}
    assert reported == pytest.approx({name: history[name][-1] for name in history})
    model.predict(X, verbose=0)
    assert observer.take().steps == 0
