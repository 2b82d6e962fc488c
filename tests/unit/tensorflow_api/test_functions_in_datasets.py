"""``tf.function`` in ``Dataset.map``: on the host, ``if`` and ``for`` on arrays work as under AutoGraph."""

import numpy as np
import pytest

import stratagem as tf


@tf.function
def scatter_boxes(boxes):
    """Counts the boxes with a label per cell, as detectors make their targets."""
    cells = tf.zeros((4,))
    for i in tf.range(tf.shape(boxes)[0]):
        if tf.equal(boxes[i][1], 0):
            continue
        cell = tf.cast(boxes[i][0], tf.int32)
        cells = tf.tensor_scatter_nd_add(cells, [[cell]], [1.0])
    return cells


BOXES = np.array([[[0, 1], [3, 1], [3, 1], [2, 0]], [[1, 1], [1, 0], [1, 0], [0, 0]]], np.float32)


@pytest.mark.parametrize("parallel", [None, 2])
def test_a_function_needs_values_of_an_element(parallel):
    dataset = tf.data.Dataset.from_tensor_slices(BOXES).repeat(3).map(scatter_boxes, parallel)
    found = [element.tolist() for element in dataset.as_numpy_iterator()]
    assert found == [[1, 0, 0, 2], [0, 1, 0, 0]] * 3


def test_the_same_function_raises_outside_of_a_dataset():
    list(tf.data.Dataset.from_tensor_slices(BOXES).map(scatter_boxes))
    with pytest.raises(tf.errors.TracedValueError, match=r"`if replica_id == 0`"):
        scatter_boxes(BOXES[0])


def test_a_function_without_conditions_stays_compiled():
    traces = []

    @tf.function
    def double(x):
        traces.append(type(x).__name__)
        return x * 2

    dataset = (
        tf.data.Dataset.from_tensor_slices(BOXES).repeat(3).map(lambda x: np.asarray(double(x)))
    )
    assert len(list(dataset)) == 6
    assert len(traces) <= 3
