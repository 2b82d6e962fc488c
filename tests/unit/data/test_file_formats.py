from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratagem.data import (
    CsvDataset,
    DataLossError,
    Dataset,
    InvalidArgumentError,
    NotFoundError,
    NumpyDataset,
    ParquetDataset,
    TensorSpec,
    TextLineDataset,
)

from .pipelines import contents


def resumes_everywhere(dataset):
    everything = contents(dataset)
    iterator = iter(dataset)
    for count in range(len(everything) + 1):
        restored = iter(dataset)
        restored.set_state(json.loads(json.dumps(iterator.get_state())))
        assert contents(restored) == everything[count:]
        next(iterator, None)
    return everything


def test_lines(tmp_path):
    (tmp_path / "a").write_bytes(b"one\r\n\ntwo\n")
    (tmp_path / "b").write_bytes(b"no end")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "zip").write_bytes(gzip.compress(b"packed\nlines\n"))
    paths = [str(tmp_path / name) for name in ("a", "empty", "b")]
    assert resumes_everywhere(TextLineDataset(paths)) == [b"one", b"", b"two", b"no end"]
    packed = TextLineDataset(tmp_path / "zip", compression_type="GZIP")
    assert resumes_everywhere(packed) == [b"packed", b"lines"]
    with pytest.raises(NotFoundError, match="absent"):
        contents(TextLineDataset(tmp_path / "absent"))


def test_lines_longer_than_a_block(tmp_path):
    lines = [b"x" * 1_500_000, b"y", b"z" * 1_100_000]
    (tmp_path / "file").write_bytes(b"\n".join(lines))
    assert list(TextLineDataset(tmp_path / "file")) == lines


@pytest.fixture
def parquet(tmp_path):
    table = pa.table(
        {
            "x": np.arange(10),
            "y": np.linspace(0, 1, 10, dtype=np.float32),
            "name": [f"row {i}" for i in range(10)],
            "pair": pa.array([[i, -i] for i in range(10)]),
            "fixed": pa.array([[i, i] for i in range(10)], pa.list_(pa.int16(), 2)),
        }
    )
    path = tmp_path / "table.parquet"
    pq.write_table(table, path, row_group_size=3)
    return path


def test_parquet_rows(parquet):
    dataset = ParquetDataset(parquet)
    rows = resumes_everywhere(dataset)
    assert rows[4] == {
        "x": 4,
        "y": float(np.float32(4 / 9)),
        "name": b"row 4",
        "pair": [4, -4],
        "fixed": [4, 4],
    }
    assert dataset.element_spec["fixed"] == TensorSpec([2], np.int16)
    (batch,) = ParquetDataset([parquet, parquet], columns=["x"]).skip(8).batch(20)
    assert batch["x"].tolist() == [8, 9, *range(10)]


def test_parquet_that_does_not_read(tmp_path, parquet):
    with pytest.raises(InvalidArgumentError, match=r"has no columns \['z'\]. It has \['x'"):
        contents(ParquetDataset(parquet, columns=["z"]))
    with pytest.raises(NotFoundError, match="absent"):
        contents(ParquetDataset(tmp_path / "absent"))
    parquet.write_bytes(parquet.read_bytes()[:-20])
    with pytest.raises(DataLossError, match=r"table.parquet: not a complete Parquet file"):
        contents(ParquetDataset(parquet))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, 2, None]), "column 'x': row 2 is null"),
        (pa.array([[1], [1, 2], [1]]), "same length, got 1 and, in row 1, 2"),
        (pa.array([{"a": 1}] * 3), "neither a number"),
    ],
)
def test_columns_that_are_not_arrays(tmp_path, column, message):
    pq.write_table(pa.table({"x": column}), tmp_path / "file")
    with pytest.raises(InvalidArgumentError, match=message):
        contents(ParquetDataset(tmp_path / "file"))


def test_missing_floats_are_nan_and_an_empty_file_has_no_rows(tmp_path):
    pq.write_table(pa.table({"x": pa.array([1.0, None])}), tmp_path / "file")
    (batch,) = ParquetDataset(tmp_path / "file").batch(2)
    np.testing.assert_array_equal(batch["x"], [1, np.nan])
    pq.write_table(pa.table({"x": pa.array([], pa.int32())}), tmp_path / "empty")
    empty = ParquetDataset(tmp_path / "empty")
    assert contents(empty) == []
    assert empty.element_spec == {"x": TensorSpec((), np.int32)}


def test_csv_rows(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,name\n1,0.5,a\n2,1.5,\n")
    rows = resumes_everywhere(CsvDataset(tmp_path / "a.csv"))
    assert rows == [{"x": 1, "y": 0.5, "name": b"a"}, {"x": 2, "y": 1.5, "name": b""}]
    (tmp_path / "b.csv").write_text("1;2\n3;4\n")
    chosen = CsvDataset(
        tmp_path / "b.csv",
        columns=["q"],
        column_names=["p", "q"],
        column_types={"q": "float32"},
        delimiter=";",
    )
    assert contents(chosen) == [{"q": 2.0}, {"q": 4.0}]
    assert chosen.element_spec == {"q": TensorSpec((), np.float32)}


@pytest.mark.parametrize(
    ("text", "arguments", "error", "message"),
    [
        ("x,y\n1,2\n3\n", {}, DataLossError, "file.csv: .*cannot be parsed.*column_types"),
        ("x\nword\n", {"column_types": {"x": "int32"}}, DataLossError, "word"),
        ("x,y\n1,2\n3,\n", {}, InvalidArgumentError, "column 'y': row 1 is null"),
        ("x\n1\n", {"columns": ["z"]}, DataLossError, "z"),
    ],
)
def test_csv_that_does_not_parse(tmp_path, text, arguments, error, message):
    (tmp_path / "file.csv").write_text(text)
    with pytest.raises(error, match=message):
        contents(CsvDataset(tmp_path / "file.csv", **arguments))


def test_csv_that_is_not_there(tmp_path):
    with pytest.raises(NotFoundError, match="absent"):
        contents(CsvDataset(tmp_path / "absent"))


def test_numpy_files_are_one_table(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    np.save(tmp_path / "b.npy", np.arange(6, 10).reshape(2, 2))
    dataset = NumpyDataset([tmp_path / "a.npy", tmp_path / "b.npy"])
    assert len(dataset) == 5
    rows = resumes_everywhere(dataset.shuffle(5, seed=1, reshuffle_each_iteration=False))
    assert sorted(rows) == np.arange(10).reshape(5, 2).tolist()
    for element in dataset:
        element += 1
    names = Dataset.list_files(str(tmp_path / "*.npy"))
    assert sorted(contents(NumpyDataset(names))) == sorted(rows)


def test_npz_files_give_dicts(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), name=np.array(["a", "bb", "c"]))
    dataset = NumpyDataset(tmp_path / "a.npz")
    assert contents(dataset)[1] == {"x": 1, "name": b"bb"}
    assert dataset.element_spec["name"] == TensorSpec((), object)


def test_numpy_files_that_do_not_fit(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    np.save(tmp_path / "b.npy", np.zeros((3, 4)))
    with pytest.raises(InvalidArgumentError, match=r"must have the same row spec.*a\.npy.*b\.npy"):
        contents(NumpyDataset([tmp_path / "a.npy", tmp_path / "b.npy"]))
    np.savez(tmp_path / "c.npz", x=np.zeros(3), y=np.zeros(2))
    with pytest.raises(InvalidArgumentError, match=r"c\.npz: .*same leading dimension"):
        contents(NumpyDataset(tmp_path / "c.npz"))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(DataLossError, match=r"a\.npy: not a complete"):
        contents(NumpyDataset(tmp_path / "a.npy"))
    np.save(tmp_path / "d.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(DataLossError, match=r"d\.npy"):
        contents(NumpyDataset(tmp_path / "d.npy"))
    with pytest.raises(NotFoundError, match="absent"):
        contents(NumpyDataset(tmp_path / "absent"))
