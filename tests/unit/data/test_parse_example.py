from __future__ import annotations

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.data.tfrecord.example_message import (
    Example,
    Feature,
    Features,
    Int64List,
    messages,
)
from stratagem.data import DataLossError, InvalidArgumentError, TFRecordDataset
from stratagem.io import (
    FixedLenFeature,
    TFRecordWriter,
    VarLenFeature,
    parse_example,
    parse_single_example,
)

FEATURES = {
    "pixels": FixedLenFeature([2, 2], "float32"),
    "label": FixedLenFeature([], "int64"),
    "name": FixedLenFeature([], "string", default_value="?"),
    "tags": VarLenFeature("string"),
}


def example(label=1, tags=(), name=None, pixels=(0.0, 1.0, 2.0, 3.0)):
    message = messages().Example()
    feature = message.features.feature
    feature["pixels"].float_list.value.extend(pixels)
    feature["label"].int64_list.value.append(label)
    feature["tags"].bytes_list.value.extend(tags)
    if name is not None:
        feature["name"].bytes_list.value.append(name)
    return message.SerializeToString()


def test_the_wire_format_is_tensorflows():
    # Features{feature{"a": Feature{int64_list{value: [1]}}}} by hand from the field numbers.
    wire = bytes.fromhex("0a0c 0a0a 0a0161 1205 1a03 0a0101".replace(" ", ""))
    assert parse_single_example(wire, {"a": FixedLenFeature([], "int64")}) == {"a": 1}


def test_examples_are_written_as_in_tensorflow():
    feature = Feature(int64_list=Int64List(value=[3]))
    record = Example(features=Features(feature={"a": feature})).SerializeToString()
    assert parse_single_example(record, {"a": FixedLenFeature([], "int64")}) == {"a": 3}


def test_one_example():
    parsed = parse_single_example(example(7, [b"x", b"y"]), FEATURES)
    assert parsed["pixels"].tolist() == [[0, 1], [2, 3]]
    assert parsed["pixels"].dtype == np.float32
    assert parsed["label"] == 7
    assert parsed["name"] == b"?"
    assert parsed["tags"].tolist() == [b"x", b"y"]


def test_a_batch_of_examples():
    batch = np.array([example(1, [b"x"], b"one"), example(2), example(3, [b"y", b"z"])], object)
    parsed = parse_example(batch, FEATURES)
    assert parsed["pixels"].shape == (3, 2, 2)
    assert parsed["label"].tolist() == [1, 2, 3]
    assert parsed["name"].tolist() == [b"one", b"?", b"?"]
    tags = parsed["tags"]
    assert tags.indices.tolist() == [[0, 0], [2, 0], [2, 1]]
    assert tags.values.tolist() == [b"x", b"y", b"z"]
    assert tags.dense_shape.tolist() == [3, 2]
    assert tags.to_dense().tolist() == [[b"x", b""], [b"", b""], [b"y", b"z"]]


def test_a_pipeline_of_records(tmp_path):
    with TFRecordWriter(tmp_path / "file") as writer:
        for label in range(5):
            writer.write(example(label))
    fixed = {name: FEATURES[name] for name in ("pixels", "label")}
    dataset = TFRecordDataset(tmp_path / "file").map(lambda r: parse_single_example(r, fixed))
    batches = list(dataset.shuffle(5, seed=1).batch(2))
    assert [batch["pixels"].shape for batch in batches] == [(2, 2, 2), (2, 2, 2), (1, 2, 2)]
    assert sorted(np.concatenate([batch["label"] for batch in batches])) == list(range(5))
    whole = TFRecordDataset(tmp_path / "file").batch(5).map(lambda r: parse_example(r, fixed))
    assert next(iter(whole))["label"].tolist() == list(range(5))


@pytest.mark.parametrize(
    ("record", "features", "error", "message"),
    [
        (b"\xffgarbage", FEATURES, DataLossError, "Not a serialized tf.train.Example"),
        (example(pixels=(1.0,)), FEATURES, InvalidArgumentError, "'pixels' must have 4 values"),
        (
            example(),
            {"label": FixedLenFeature([], "float32")},
            InvalidArgumentError,
            "'label' must be a float_list.*got a int64_list",
        ),
        (
            example(),
            {"absent": FixedLenFeature([], "int64")},
            InvalidArgumentError,
            "'absent' is missing. Give it a default_value",
        ),
        (
            example(),
            {"label": "int64"},
            InvalidArgumentError,
            "FixedLenSequenceFeature or a VarLen",
        ),
        (example(), {}, InvalidArgumentError, "dict of name to feature"),
    ],
    ids=["garbage", "too few values", "another kind", "missing", "no feature", "no features"],
)
def test_records_that_do_not_parse(record, features, error, message):
    with pytest.raises(error, match=message):
        parse_single_example(record, features)


def test_the_record_of_a_batch_is_named():
    with pytest.raises(InvalidArgumentError, match="record 1: Feature 'pixels'"):
        parse_example([example(), example(pixels=(1.0,))], FEATURES)
    with pytest.raises(InvalidArgumentError, match="vector of bytes"):
        parse_example(example(), FEATURES)


def test_bad_features():
    with pytest.raises(InvalidArgumentError, match="int64, float32 or string, got int32"):
        VarLenFeature("int32")
    with pytest.raises(InvalidArgumentError, match="fully known"):
        FixedLenFeature([None], "int64")
    with pytest.raises(InvalidArgumentError, match="default_value must fit"):
        FixedLenFeature([2], "int64", default_value=[1, 2, 3])


def sequence_record():
    train = sg.train
    words = [train.Feature(int64_list=train.Int64List(value=[n, n + 1])) for n in (3, 5)]
    tags = [train.Feature(bytes_list=train.BytesList(value=v)) for v in ([b"a"], [], [b"b", b"c"])]
    lists = {"words": train.FeatureList(feature=words), "tags": train.FeatureList(feature=tags)}
    label = train.Feature(float_list=train.FloatList(value=[1.5]))
    return train.SequenceExample(
        context=train.Features(feature={"label": label}),
        feature_lists=train.FeatureLists(feature_list=lists),
    ).SerializeToString()


def test_sequence_examples():
    io = sg.io
    context, sequences = io.parse_single_sequence_example(
        sequence_record(),
        {"label": io.FixedLenFeature([], "float32")},
        {
            "words": io.FixedLenSequenceFeature([2], "int64"),
            "tags": io.VarLenFeature("string"),
            "none": io.FixedLenSequenceFeature([], "float32", allow_missing=True),
        },
    )
    assert context == {"label": 1.5}
    assert sequences["words"].tolist() == [[3, 4], [5, 6]]
    assert isinstance(sequences["tags"], sg.SparseTensor)
    assert (sequences["tags"].shape, sequences["none"].shape) == ((3, 2), (0,))
    dense = sg.sparse.to_dense(sequences["tags"], default_value="-")
    assert dense.tolist() == [[b"a", b"-"], [b"-", b"-"], [b"b", b"c"]]


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"other": sg.io.FixedLenSequenceFeature([], "int64")}, "'other' is missing. Pass allow"),
        (
            {"words": sg.io.FixedLenSequenceFeature([], "int64")},
            "step 0: Feature 'words' must have 1",
        ),
        ({"words": sg.io.FixedLenSequenceFeature([2], "float32")}, "must be a float_list"),
        ({"words": sg.io.FixedLenFeature([2], "int64")}, "must be a FixedLenSequenceFeature or"),
        (None, "Pass context_features, sequence_features, or both"),
    ],
)
def test_sequence_examples_that_do_not_fit(feature, message):
    with pytest.raises(sg.errors.InvalidArgumentError, match=message):
        sg.io.parse_single_sequence_example(sequence_record(), sequence_features=feature)
