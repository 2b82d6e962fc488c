"""Metrics give the numbers that TensorFlow's Keras gives; theirs are written down here."""

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg

M = sg.metrics
LABELS = [0, 0, 1, 1, 1, 0, 1, 0]
SCORES = [0.1, 0.4, 0.35, 0.8, 0.65, 0.5, 1.0, 0.0]
WEIGHTS = [1, 2, 0.5, 1, 3, 1, 0, 2]


@pytest.mark.parametrize(
    ("options", "plain", "weighted"),
    [
        ({}, 0.875, 0.9444444),
        ({"num_thresholds": 3}, 0.875, 0.9444444),
        pytest.param({"num_thresholds": 2}, 0.5, 0.5, marks=pytest.mark.slow),
        ({"curve": "PR"}, 0.9088392, 0.9540048),
        ({"curve": "pr", "summation_method": "minoring"}, 0.65, 0.7301587),
        pytest.param(
            {"curve": "PR", "summation_method": "majoring"},
            0.9166667,
            0.9555556,
            marks=pytest.mark.slow,
        ),
        pytest.param({"summation_method": "minoring"}, 0.875, 0.9444444, marks=pytest.mark.slow),
        ({"thresholds": [0.9, 0.2, 0.5]}, 0.9375, 0.9722222),
        pytest.param(
            {"curve": "PR", "thresholds": [0.2, 0.5, 0.9]},
            0.9488579,
            0.9731819,
            marks=pytest.mark.slow,
        ),
        pytest.param({"thresholds": [0.25, 0.5, 0.75]}, 0.9375, 0.9722222, marks=pytest.mark.slow),
    ],
)
def test_auc(options, plain, weighted):
    metric = M.AUC(**options)
    for part in (slice(0, 5), slice(5, 8)):
        metric.update_state(LABELS[part], SCORES[part])
    assert float(metric.result()) == pytest.approx(plain, abs=1e-6)
    metric.reset_state()
    for part in (slice(0, 5), slice(5, 5), slice(5, 8)):
        metric.update_state(LABELS[part], SCORES[part], sample_weight=WEIGHTS[part])
    assert float(metric.result()) == pytest.approx(weighted, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "plain", "weighted"),
    [
        pytest.param(
            {"multi_label": True, "num_labels": 2}, 0.75, 0.6071428, marks=pytest.mark.slow
        ),
        ({"multi_label": True, "num_labels": 2, "label_weights": [1.0, 3.0]}, 0.75, 0.6607143),
        ({"multi_label": True, "num_labels": 2, "curve": "PR"}, 0.7972674, 0.6503208),
        ({}, 0.8125, 0.7575758),
        ({"label_weights": [1.0, 3.0]}, 0.796875, 0.776),
    ],
)
def test_auc_of_several_labels(options, plain, weighted):
    labels = [[0, 1], [1, 1], [0, 0], [1, 0]]
    scores = [[0.2, 0.9], [0.7, 0.3], [0.6, 0.4], [0.55, 0.1]]
    assert float(M.AUC(**options)(labels, scores)) == pytest.approx(plain, abs=1e-6)
    metric = M.AUC(**options)
    assert float(metric(labels, scores, [1, 2, 3, 4])) == pytest.approx(weighted, abs=1e-6)


def test_auc_of_logits_and_of_what_is_not_a_number():
    logits = [-2, -0.4, -0.6, 1.4, 0.6, 0.0, 5.0, -5.0]
    assert float(M.AUC(from_logits=True)(LABELS, logits)) == pytest.approx(0.875)
    assert np.isnan(float(M.AUC()([0, 1], [0.5, np.nan])))


VALUES = [[1.0, 3.0], [5.0, 7.0], [2.0, 6.0]]


@pytest.mark.parametrize(
    ("weights", "mean", "total"),
    [
        (None, 4.0, 24.0),
        ([1, 2, 0], 4.6666665, 28.0),
        ([[1], [2], [0]], 4.6666665, 28.0),
        ([[1, 2], [3, 4], [0, 1]], 5.090909, 56.0),
        (2.0, 4.0, 48.0),
    ],
)
def test_mean_and_sum(weights, mean, total):
    assert float(M.Mean()(VALUES, weights)) == pytest.approx(mean)
    assert float(M.Sum()(VALUES, weights)) == pytest.approx(total)


def test_mean_of_numbers_and_of_nothing():
    metric = M.Mean(name="loss")
    assert metric.name == "loss"
    assert float(metric.result()) == 0
    metric.update_state(3.0)
    metric.update_state(jnp.zeros((0, 4)))
    assert float(metric(5.0)) == 4
    metric.reset_states()
    assert float(metric(np.float16(2))) == 2
    assert metric.result().dtype == metric.dtype == np.float32


def test_accuracies():
    column = [[1], [2], [3], [4]]
    assert float(M.Accuracy()(column, [[0], [2], [3], [4]], [1, 1, 0, 0])) == 0.5
    assert float(M.Accuracy()([1, 2, 3, 4], [[0], [2], [3], [4]])) == 0.75
    labels, scores = [[1, 1], [1, 0], [0, 0]], [[0.98, 0.4], [1, 0], [0, 0.6]]
    assert float(M.BinaryAccuracy()(labels, scores)) == pytest.approx(0.6666667)
    weighted = M.BinaryAccuracy(threshold=0.3)
    assert float(weighted(labels, scores, [1, 0, 2])) == pytest.approx(0.6666667)
    classes = [[0.1, 0.6, 0.3], [0.05, 0.95, 0], [0.5, 0.2, 0.3]]
    sparse = M.SparseCategoricalAccuracy
    assert float(sparse()([2, 1, 0], classes, [0.7, 0.3, 0.5])) == pytest.approx(0.5333334)
    assert float(sparse()([[2], [1], [0]], classes)) == pytest.approx(0.6666667)
    sequences = [classes[:2], [[0.5, 0.2, 0.3], [0.9, 0, 0]]]
    assert float(sparse()([[2, 1], [0, 0]], sequences, [1, 3])) == pytest.approx(0.875)


def test_large_class_numbers_are_told_apart_from_half_precision_scores():
    scores = jnp.zeros((1, 5000), jnp.float16).at[0, 4001].set(1)
    assert float(M.SparseCategoricalAccuracy()([4000], scores)) == 0
    assert float(M.SparseCategoricalAccuracy()([4001], scores)) == 1


def test_mean_squared_error():
    labels, predictions = [[0, 1], [0, 0]], [[1.0, 1.0], [0.0, 0.5]]
    assert float(M.MeanSquaredError()(labels, predictions)) == 0.3125
    assert float(M.MeanSquaredError()(labels, predictions, [1, 3])) == 0.21875


def test_shapes_that_would_be_broadcast_are_refused():
    with pytest.raises(sg.errors.ShapeMismatchError, match=r"\(1,\) and \(4,\)"):
        M.Accuracy()([1], [1, 1, 1, 1])
    with pytest.raises(sg.errors.ShapeMismatchError, match="class index"):
        M.SparseCategoricalAccuracy()([1, 0], [[0.5, 0.5]])
    with pytest.raises(sg.errors.ShapeMismatchError, match=r"got shape \(2,\)"):
        M.Mean()([1.0, 2.0, 3.0], [1, 1])
    with pytest.raises(sg.errors.ShapeMismatchError, match=r"got shape \(2,\)"):
        M.AUC()([1, 0, 1], [0.5, 0.5, 0.5], [1, 1])
    with pytest.raises(sg.errors.ShapeMismatchError, match="2 columns"):
        M.AUC(multi_label=True, num_labels=2)([1, 0], [0.1, 0.2])


@pytest.mark.parametrize(
    "options",
    [
        {"curve": "LIFT"},
        {"summation_method": "trapezoid"},
        {"num_thresholds": 1},
        {"thresholds": [0.5, 1.5]},
        {"multi_label": True},
        {"num_labels": 3},
    ],
)
def test_wrong_options_of_auc(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        M.AUC(**options)


class Ratio(M.Metric):
    """Begins with one of one."""

    def __init__(self, name=None, dtype=None):
        super().__init__(name, dtype)
        self.good = self.add_weight("good", initializer="ones")
        self.all = self.add_weight(
            name="all", initializer=lambda shape, dtype: np.ones(shape, dtype)
        )

    def update_state(self, good, of):
        self.good.assign_add(jnp.asarray(good, self.dtype))
        self.all.assign_add(jnp.asarray(of, self.dtype))

    def result(self):
        return self.good / self.all


def test_a_metric_of_ones_own():
    metric = Ratio(dtype="float16")
    assert (metric.name, metric.dtype) == ("ratio", np.float16)
    assert [v.name for v in metric.variables] == ["ratio/good:0", "ratio/all:0"]
    assert float(metric(1, 3)) == 0.5
    metric.reset_state()
    assert float(metric.result()) == 1
    with pytest.raises(ValueError, match="'good' twice"):
        metric.add_weight("good")
    with pytest.raises(ValueError, match="'glorot'"):
        metric.add_variable(initializer="glorot")
    with pytest.raises(NotImplementedError, match="update_state"):
        M.Metric()(1.0)


TARGETS = np.arange(5, dtype=np.float32)
ERRORS = np.array([1, 2, 3, 4, 5], np.float32)
VECTOR_METRICS = {
    "squared_error": M.MeanSquaredError,
    "function_of_each_sample": lambda: M.MeanMetricWrapper(lambda y, p: (y - p) ** 2),
    "function_of_the_batch": lambda: M.MeanMetricWrapper(lambda y, p: jnp.mean((y - p) ** 2)),
}


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("kind", VECTOR_METRICS)
def test_each_sample_of_a_vector_counts_once_in_partial_and_empty_batches(kind, mode, rows):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        metric = VECTOR_METRICS[kind]()
    dataset = sg.data.Dataset.from_tensor_slices((TARGETS, TARGETS + ERRORS)).take(rows).batch(4)
    update = (sg.function if mode == "compiled" else lambda f: f)(
        lambda batch: strategy.run(metric.update_state, args=batch)
    )
    for batch in strategy.experimental_distribute_dataset(dataset):
        update(batch)
    assert float(metric.result()) == pytest.approx(np.mean(ERRORS[:rows] ** 2))
    assert float(metric.count) == rows


def test_a_number_for_a_batch_counts_for_its_samples():
    metric = M.MeanMetricWrapper(lambda y, p: jnp.mean(y["a"] - p["a"]))
    metric.update_state({"a": jnp.array([4.0, 6.0])}, {"a": jnp.zeros(2)})
    metric.update_state({"a": jnp.array([8.0])}, {"a": jnp.zeros(1)}, sample_weight=2.0)
    assert (float(metric.result()), float(metric.count)) == (6.5, 4)
    with pytest.raises(sg.errors.ShapeMismatchError, match=r"values of shape \(\)"):
        metric.update_state({"a": jnp.ones(2)}, {"a": jnp.zeros(2)}, sample_weight=[1, 2])
