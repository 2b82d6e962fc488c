"""Layers of strings and vocabularies give the indices of Keras, without TensorFlow."""

import numpy as np
import pytest
from keras_training import keras

import stratagem as sg

layers = keras.layers


def test_strings_become_indices_and_strings_again():
    lookup = layers.StringLookup(vocabulary=["a", "b", "c"])
    assert lookup(np.array([["a", "c"], ["z", "b"]])).tolist() == [[1, 3], [0, 2]]
    assert lookup.get_vocabulary() == ["[UNK]", "a", "b", "c"]
    inverse = layers.StringLookup(vocabulary=lookup.get_vocabulary(), invert=True)
    assert inverse(np.array([1, 0])).tolist() == [b"a", b"[UNK]"]
    masked = layers.StringLookup(vocabulary=["a"], mask_token="", num_oov_indices=2)
    # FarmHash decides between the two indices of unknown strings.
    assert masked(np.array(["", "a"])).tolist() == [0, 3]
    assert set(masked(np.array([f"word {i}" for i in range(20)])).tolist()) == {1, 2}


def test_a_vocabulary_is_learned_by_frequency():
    lookup = layers.StringLookup(max_tokens=4)
    words = ["b", "a", "c", "c", "a", "d", "c"]
    lookup.adapt(sg.data.Dataset.from_tensor_slices(words).batch(2))
    assert lookup.get_vocabulary() == ["[UNK]", "c", "a", "d"]  # a tie is broken by the token
    assert lookup.vocabulary_size() == 4
    copy = layers.StringLookup.from_config(lookup.get_config())
    assert copy(np.array(["d"])).tolist() == [3]


def test_unknown_strings_raise_if_there_is_no_index_for_them():
    lookup = layers.StringLookup(vocabulary=["yes", "no"], num_oov_indices=0)
    assert lookup(["no"]).tolist() == [1]
    with pytest.raises(ValueError, match="found OOV value 'perhaps'"):
        lookup(["perhaps"])


def test_integers_hashes_and_encodings():
    integers = layers.IntegerLookup(vocabulary=[12, 36], output_mode="multi_hot")
    assert integers(np.array([[12, 12], [36, 7]])).tolist() == [[0, 1, 0], [1, 0, 1]]
    # As TensorFlow's Hashing(num_bins=3) gives in the documentation of Keras.
    hashing = layers.Hashing(num_bins=3)
    assert hashing(np.array([["A"], ["B"], ["C"], ["D"], ["E"]])).tolist() == [
        [1],
        [0],
        [1],
        [1],
        [2],
    ]
    masked = layers.Hashing(num_bins=3, mask_value="")
    found = masked(np.array([["A"], ["B"], [""], ["C"], ["D"]])).tolist()
    assert found == [[1], [1], [0], [2], [2]]


def test_texts_become_sequences():
    texts = ["The cat sat.", "the   dog!"]
    layer = layers.TextVectorization(output_sequence_length=4)
    layer.adapt(np.array(texts))
    assert layer.get_vocabulary() == ["", "[UNK]", "the", "sat", "dog", "cat"]
    assert layer(np.array(texts)).tolist() == [[2, 5, 3, 0], [2, 4, 0, 0]]
    counted = layers.TextVectorization(ngrams=2, output_mode="count", vocabulary=["a", "a b"])
    assert counted(np.array(["a b a b", "c"])).tolist() == [[3, 2, 2], [1, 0, 0]]


def test_layers_and_models_of_strings_work_in_datasets():
    lookup = layers.StringLookup(vocabulary=["x", "y"], mask_token=None)
    inputs = keras.Input((2,), dtype="string", name="features")
    model = keras.Model({"features": inputs}, lookup(inputs))
    rows = np.array([["x", "y"], ["z", "x"]])
    dataset = sg.data.Dataset.from_tensor_slices(rows)
    assert [e.tolist() for e in dataset.map(lookup)] == [[1, 2], [0, 1]]
    by_model = dataset.batch(2).map(lambda x: model({"features": x}))
    assert [e.tolist() for e in by_model] == [[[1, 2], [0, 1]]]


def test_an_input_of_the_dtype_tf_string():
    words = keras.Input((2,), dtype=sg.string, name="words")
    indices = layers.StringLookup(vocabulary=["a", "b"])(words)
    model = keras.Model({"words": words}, indices)
    rows = sg.data.Dataset.from_tensor_slices({"words": [["a", "b"], ["b", "z"]]})
    assert [x.tolist() for x in rows.map(model).as_numpy_iterator()] == [[1, 2], [2, 0]]


def test_a_compiled_step_cannot_look_up():
    lookup = layers.IntegerLookup(vocabulary=[5])
    with pytest.raises(ValueError, match=r"Dataset\.map"):
        sg.function(lambda x: lookup(x))(np.array([5]))


def test_normalization_adapts_to_a_dataset():
    data = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    layer = layers.Normalization()
    layer.adapt(sg.data.Dataset.from_tensor_slices(data).batch(3))
    np.testing.assert_allclose(np.asarray(layer(data)).mean(0), 0, atol=1e-6)
    assert len(list(sg.data.Dataset.from_tensor_slices(data).batch(3).map(layer))) == 2
