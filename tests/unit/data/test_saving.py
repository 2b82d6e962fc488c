"""Datasets in files: saved, loaded, and kept by the way."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.data.plan.node import walk
from stratagem._src.data.saved import reader
from stratagem._src.data.saved.reader import SavedElements
from stratagem.data import (
    DataLossError,
    Dataset,
    InvalidArgumentError,
    NotFoundError,
    TensorSpec,
    num_files,
    shard_by_data,
    shard_by_file,
)
from stratagem.data.experimental import SHARD_HINT

from .pipelines import contents, not_five, streamed

Pair = collections.namedtuple("Pair", "a b")


def elements_of_many_kinds():
    values = {
        "x": np.arange(12, dtype=np.float32).reshape(6, 2),
        "half": np.arange(6).astype(jnp.bfloat16),
        "text": [f"é{n}\0" for n in range(6)],
        "texts": np.array([[b"a", b""]] * 6, object),
        "pair": Pair(np.arange(6) > 2, (np.arange(6, dtype=">i2"), None)),
    }
    return Dataset.from_tensor_slices(values)


@pytest.mark.parametrize("compression", [None, "GZIP", "NONE", "AUTO"])
@pytest.mark.parametrize("memory", [True, False])
def test_elements_come_back_as_they_were(tmp_path, compression, memory):
    dataset = elements_of_many_kinds()
    if not memory:
        dataset = dataset.filter(lambda element: True)
    dataset.save(tmp_path / "saved", compression=compression)
    loaded = Dataset.load(tmp_path / "saved")
    assert contents(loaded) == contents(dataset)
    assert loaded.cardinality() == 6
    first = next(iter(loaded))
    assert first["half"].dtype == jnp.bfloat16
    assert type(first["pair"]).__name__ == "Pair"
    assert first["pair"].b[1] is None
    assert loaded.element_spec["pair"].b[0] == TensorSpec((), "int16")
    assert contents(loaded.shuffle(6, seed=1).batch(4).take(1))[0]["x"] != []


def test_elements_of_different_shapes_come_back(tmp_path):
    ragged = streamed(range(9)).map(lambda n: np.full(int(n) % 4, n))
    ragged.save(tmp_path / "saved")
    loaded = Dataset.load(tmp_path / "saved")
    assert contents(loaded) == contents(ragged)
    assert loaded.element_spec == TensorSpec([None], "int64")


def test_many_elements_are_read_in_blocks(tmp_path):
    numbers = np.arange(5000)
    Dataset.from_tensor_slices(numbers).save(tmp_path / "saved")
    loaded = Dataset.load(tmp_path / "saved")
    batches = list(loaded.batch(1500))
    assert np.concatenate(batches).tolist() == numbers.tolist()
    assert contents(loaded.skip(4998)) == [4998, 4999]
    assert contents(loaded.map(lambda x: x + 1).batch(2).take(1)) == [[1, 2]]


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_a_loaded_dataset_is_resumed_anywhere(tmp_path, compression):
    streamed(range(23)).map(lambda n: np.full(int(n) // 5, n)).save(
        tmp_path / "saved", compression, shard_func=lambda x: len(x) % 2
    )
    loaded = Dataset.load(tmp_path / "saved")
    iterator = iter(loaded)
    states, elements = [iterator.get_state()], []
    for element in iterator:
        elements.append(element.tolist())
        states.append(json.loads(json.dumps(iterator.get_state())))
    assert len(elements) == 23
    for position, state in enumerate(states):
        restored = iter(Dataset.load(tmp_path / "saved"))
        restored.set_state(state)
        assert contents(restored) == elements[position:]


def test_shards_and_how_they_are_read(tmp_path):
    Dataset.range(10).save(tmp_path / "saved", shard_func=lambda x: x % 3)
    loaded = Dataset.load(tmp_path / "saved")
    assert contents(loaded) == list(range(10))
    assert num_files(loaded) == 3
    assert contents(shard_by_file(loaded, 3, 1)) == [1, 4, 7]
    assert shard_by_file(loaded, 3, 0).cardinality() == 4
    shards = [contents(shard_by_data(loaded, 2, index)) for index in range(2)]
    assert sorted(shards[0] + shards[1]) == list(range(10))
    in_order = Dataset.load(
        tmp_path / "saved", reader_func=lambda shards: shards.flat_map(lambda shard: shard)
    )
    assert contents(in_order) == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
    sizes = Dataset.load(
        tmp_path / "saved",
        reader_func=lambda shards: shards.shuffle(3).map(lambda shard: shard.cardinality()),
    )
    assert sorted(contents(sizes)) == [3, 3, 4]


def test_an_empty_dataset_is_saved(tmp_path):
    Dataset.range(0).save(tmp_path / "saved")
    assert contents(Dataset.load(tmp_path / "saved")) == []
    assert Dataset.load(tmp_path / "saved").element_spec == TensorSpec((), "int64")


def test_saving_again_replaces_and_failing_leaves_what_was_there(tmp_path):
    path = tmp_path / "saved"
    Dataset.range(3).save(path)
    with pytest.raises(ValueError, match="five"):
        streamed(range(1, 9)).map(not_five).save(path)
    assert contents(Dataset.load(path)) == [0, 1, 2]
    Dataset.range(5).batch(2).save(path)
    assert contents(Dataset.load(path)) == [[0, 1], [2, 3], [4]]
    assert len(list(path.glob("run-*"))) == 1
    assert len(list(path.iterdir())) == 2


def test_a_dataset_is_saved_over_itself(tmp_path):
    path = tmp_path / "saved"
    Dataset.range(3).save(path)
    Dataset.load(path).map(lambda x: x * 2).save(path)
    assert contents(Dataset.load(path)) == [0, 2, 4]


def test_a_save_that_was_killed_is_no_dataset(tmp_path):
    code = textwrap.dedent(
        f"""
        import os
        from stratagem.data import Dataset, TensorSpec

        def numbers():
            for number in range(5000):
                if number == 4000:
                    os._exit(9)
                yield number

        signature = TensorSpec((), "int64")
        Dataset.from_generator(numbers, output_signature=signature).save({str(tmp_path / "s")!r})
        """
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    with pytest.raises(NotFoundError, match="a save did not finish"):
        Dataset.load(tmp_path / "s")
    Dataset.range(3).save(tmp_path / "s")
    assert contents(Dataset.load(tmp_path / "s")) == [0, 1, 2]


def test_what_is_no_dataset(tmp_path):
    with pytest.raises(NotFoundError, match="no saved dataset at"):
        Dataset.load(tmp_path / "missing")
    with pytest.raises(NotFoundError, match=r"it has no dataset\.json"):
        Dataset.load(tmp_path)
    (tmp_path / "dataset_spec.pb").touch()
    with pytest.raises(NotFoundError, match=r"saved by tf\.data"):
        Dataset.load(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"other files than a saved .*spec\.pb"):
        Dataset.range(3).save(tmp_path)
    with pytest.raises(InvalidArgumentError, match="is a file"):
        Dataset.range(3).save(tmp_path / "dataset_spec.pb")
    other = tmp_path / "other"
    other.mkdir()
    for text in ('{"format": "another"}', "[]"):
        (other / "dataset.json").write_text(text)
        with pytest.raises(InvalidArgumentError, match="does not describe a dataset"):
            Dataset.load(other)
        with pytest.raises(InvalidArgumentError, match="does not describe a dataset"):
            Dataset.range(3).save(other)
    assert [entry.name for entry in other.iterdir()] == ["dataset.json"]


def damage(path, how):
    records = next(path.glob("run-*/*.records"))
    description = path / "dataset.json"
    data = records.read_bytes()
    if how == "flipped":
        records.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    elif how == "cut":
        records.write_bytes(data[:-3])
    elif how == "gone":
        records.unlink()
    elif how == "other elements":
        content = json.loads(description.read_text())
        content["shards"][0]["num_elements"] += 1
        description.write_text(json.dumps(content))
    elif how == "elsewhere":
        text = description.read_text()
        description.write_text(text.replace("00000.records", "../../etc/passwd"))
    elif how == "half":
        description.write_text(description.read_text()[:30])


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "other elements", "elsewhere", "half"])
def test_a_damaged_dataset_is_refused_and_can_be_saved_again(tmp_path, how):
    path = tmp_path / "saved"
    Dataset.range(30).save(path)
    damage(path, how)
    with pytest.raises(DataLossError, match=str(path)):
        list(Dataset.load(path))
    Dataset.range(2).save(path)
    assert contents(Dataset.load(path)) == [0, 1]


def test_a_later_version_is_refused(tmp_path):
    Dataset.range(3).save(tmp_path / "saved")
    description = tmp_path / "saved" / "dataset.json"
    description.write_text(description.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(
        InvalidArgumentError, match="has format version 2, but this program reads 1"
    ):
        Dataset.load(tmp_path / "saved")


def test_what_was_asked_for_must_be_what_was_saved(tmp_path):
    Dataset.range(3).save(tmp_path / "saved", compression="GZIP")
    spec = TensorSpec((), "int64")
    assert contents(Dataset.load(tmp_path / "saved", spec, "GZIP")) == [0, 1, 2]
    for wrong in (TensorSpec((), "int32"), (spec,), TensorSpec([2], "int64")):
        with pytest.raises(InvalidArgumentError, match="element_spec must match the saved one"):
            Dataset.load(tmp_path / "saved", wrong)
    with pytest.raises(
        InvalidArgumentError, match=r"compression must be that of the files.*'GZIP'"
    ):
        Dataset.load(tmp_path / "saved", compression="NONE")
    with pytest.raises(InvalidArgumentError, match="wait must be False"):
        Dataset.load(tmp_path / "saved", wait=True)


def test_what_cannot_be_saved(tmp_path):
    path = tmp_path / "saved"
    with pytest.raises(InvalidArgumentError, match="An infinite dataset cannot be saved"):
        Dataset.counter().save(path)
    with pytest.raises(InvalidArgumentError, match=r"compression must be .* got 'SNAPPY'"):
        Dataset.range(3).save(path, compression="SNAPPY")
    with pytest.raises(InvalidArgumentError, match="checkpoint_args must be None"):
        Dataset.range(3).save(path, checkpoint_args={"max_to_keep": 1})
    with pytest.raises(InvalidArgumentError, match="dicts with string keys"):
        Dataset.from_tensors({1: 2}).save(path)
    with pytest.raises(InvalidArgumentError, match="shard_func must return one integer, got"):
        Dataset.range(3).save(path, shard_func=lambda x: "a")
    with pytest.raises(RuntimeError, match="SHARD_HINT"):
        Dataset.range(3).shard(SHARD_HINT, SHARD_HINT).save(path)
    assert not path.exists() or list(path.iterdir()) == []


class Counted:
    """A function that counts its calls; it is told from others by its factor."""

    calls = 0

    def __init__(self, factor=2):
        self.factor = factor

    def __call__(self, number):
        Counted.calls += 1
        return int(number) * self.factor


def kept(path, count=4, factor=2, **options):
    Counted.calls = 0
    return streamed(range(count)).map(Counted(factor)).snapshot(path, **options)


def test_a_snapshot_is_made_by_a_complete_pass_and_read_later(tmp_path):
    dataset = kept(tmp_path)
    iterator = iter(dataset)
    assert next(iterator) == 0
    iterator.close()
    del iterator
    assert not list(tmp_path.glob("*/dataset.json"))
    assert not list(tmp_path.glob("*/run-*"))
    assert contents(dataset) == [0, 2, 4, 6]
    made = Counted.calls
    assert contents(dataset.repeat(2)) == [0, 2, 4, 6] * 2
    assert Counted.calls == made
    again = kept(tmp_path)
    again.element_spec  # noqa: B018
    looked = Counted.calls
    assert contents(again) == [0, 2, 4, 6]
    assert Counted.calls == looked


def test_another_pipeline_has_another_snapshot(tmp_path):
    numbers = Dataset.range(6)
    variants = [
        numbers,
        numbers.map(lambda x: x * 2),
        numbers.map(lambda x: x * 3),
        numbers.batch(2),
        numbers.batch(3),
        Dataset.from_tensor_slices(np.arange(6)),
        Dataset.from_tensor_slices(np.arange(1, 7)),
        numbers.shuffle(6, seed=1),
        numbers.shuffle(6, seed=2),
        numbers.take(3),
        *(numbers.map(lambda x, factor=factor: x * factor) for factor in (5, 7)),
    ]
    expected = [contents(variant) for variant in variants]
    for _ in range(2):
        found = [contents(variant.snapshot(tmp_path, "GZIP")) for variant in variants]
        assert [found[i] for i in range(7)] == expected[:7]
        assert found[9:] == expected[9:]
    assert len(list(tmp_path.iterdir())) == len(variants)


def test_a_snapshot_by_a_key(tmp_path):
    assert contents(kept(tmp_path, key="v1")) == [0, 2, 4, 6]
    assert contents(kept(tmp_path, factor=3, key="v1")) == [0, 2, 4, 6]
    assert contents(kept(tmp_path, factor=3, key="v2")) == [0, 3, 6, 9]
    with pytest.raises(InvalidArgumentError, match="Change the key, or remove the snapshot"):
        list(Dataset.from_tensors("a").snapshot(tmp_path, key="v1"))


@pytest.mark.parametrize("complete", [False, True])
def test_a_snapshot_is_resumed_from_where_it_was_read(tmp_path, complete):
    def build():
        return (
            streamed(range(8))
            .shuffle(4, seed=3)
            .snapshot(
                tmp_path,
                shard_func=lambda x: x % 2,
                reader_func=lambda shards: shards.flat_map(lambda shard: shard.shuffle(3)),
            )
        )

    if complete:
        assert sorted(contents(build())) == list(range(8))
    iterator = iter(build())
    states, elements = [iterator.get_state()], []
    for element in iterator:
        elements.append(int(element))
        states.append(json.loads(json.dumps(iterator.get_state())))
    assert sorted(elements) == list(range(8))
    for position, state in enumerate(states):
        restored = iter(build())
        restored.set_state(state)
        assert contents(restored) == elements[position:]
    if complete:
        next(tmp_path.glob("*/dataset.json")).unlink()
        with pytest.raises(DataLossError, match="The snapshot that the saved iterator read from"):
            iter(build()).set_state(states[3])


def test_a_pass_with_an_error_keeps_nothing(tmp_path):
    failing = streamed(range(7)).map(not_five).snapshot(tmp_path).ignore_errors()
    assert contents(failing) == [1, 2, 3, 4, 6]
    assert not list(tmp_path.glob("*/dataset.json"))
    whole = streamed(range(7)).map(not_five).ignore_errors().snapshot(tmp_path)
    assert contents(whole) == contents(whole) == [1, 2, 3, 4, 6]
    assert len(list(tmp_path.glob("*/dataset.json"))) == 1


def test_two_passes_at_a_time_make_one_snapshot(tmp_path):
    dataset = kept(tmp_path)
    iterators = [iter(dataset), iter(dataset)]
    for first, second in zip(*iterators, strict=True):
        assert first == second
    assert len(list(tmp_path.glob("*/run-*"))) == 1
    assert contents(dataset) == [0, 2, 4, 6]


def test_shards_have_snapshots_of_their_own(tmp_path):
    Dataset.range(6).save(tmp_path / "saved", shard_func=lambda x: x % 2)
    dataset = Dataset.load(tmp_path / "saved").snapshot(tmp_path / "kept")
    for _ in range(2):
        shards = [contents(shard_by_file(dataset, 2, index)) for index in range(2)]
        assert shards == [[0, 2, 4], [1, 3, 5]]
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_an_infinite_dataset_has_no_snapshot(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"Put repeat\(\) after it"):
        Dataset.counter().snapshot(tmp_path)


HELPER_FACTOR = 3


def helper(x):
    return x * HELPER_FACTOR


def test_a_fingerprint_sees_what_functions_use(monkeypatch):
    def build():
        return Dataset.range(5).map(lambda x: helper(x)).filter(Counted().__call__)

    before = build().fingerprint()
    assert build().fingerprint() == before
    assert before.dtype == np.uint64
    monkeypatch.setitem(globals(), "HELPER_FACTOR", 4)
    assert build().fingerprint() != before
    unseeded = Dataset.range(5).shuffle(3)
    assert unseeded.fingerprint() == Dataset.range(5).shuffle(3).fingerprint()
    list(unseeded)
    assert unseeded.fingerprint() == Dataset.range(5).shuffle(3).fingerprint()


def test_a_fingerprint_is_the_same_in_another_process():
    code = textwrap.dedent(
        """
        import numpy as np
        from stratagem.data import Dataset
        def f(x, y=(1, "a")):
            return x + sum(n for n in range(int(y[0])))
        dataset = Dataset.from_tensor_slices(np.arange(5)).map(f).window(2).flat_map(
            lambda w: w.batch(2)).cache().shuffle(9).scan(np.int64(0), lambda s, x: (s, x))
        found = int(dataset.fingerprint())
        """
    )
    here = {"__name__": "__main__"}
    exec(code, here)
    command = [sys.executable, "-c", f"{code}\nprint(found)"]
    there = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(there.stdout) == here["found"]


def test_a_function_that_uses_something_closed_has_no_fingerprint():
    generator = (n for n in range(3))
    dataset = Dataset.range(3).map(lambda x: next(generator))
    with pytest.raises(
        InvalidArgumentError, match=r"generator object .* pass a key to snapshot\(\)"
    ):
        dataset.fingerprint()


def test_counting_elements_closes_what_it_reads(tmp_path, monkeypatch):
    """Also if a file cannot be counted: the names of the files come from a pipeline, too."""
    Dataset.range(6).save(tmp_path / "saved")
    plan = Dataset.load(tmp_path / "saved").plan
    [saved] = [node for node in walk(plan) if isinstance(node, SavedElements)]
    closed = []

    class Names:
        def __iter__(self):
            return iter(["no such file"])

        def close(self):
            closed.append(True)

    monkeypatch.setattr(reader, "peek", lambda node: Names())
    with pytest.raises(KeyError):
        saved.cardinality()
    assert closed == [True]
