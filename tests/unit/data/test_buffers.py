"""What the user may change later never changes what a dataset gives."""

from __future__ import annotations

import array
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.data import Dataset, TensorSpec

FRAME = TensorSpec((2,), np.float32)
ONE = np.zeros(1)
SIX = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


class Reader:
    """Fills one buffer for each frame, as readers of videos and sensors do."""

    def __init__(self):
        self.buffer = np.zeros(2, np.float32)

    def read(self, number):
        self.buffer[:] = number
        return self.buffer

    def __call__(self):
        return (self.read(number) for number in range(6))


def from_generator(reader):
    return Dataset.from_generator(reader, output_signature=FRAME)


def from_generator_of_views(reader):
    frames = Dataset.from_generator(
        lambda: (frame.reshape(2, 1) for frame in reader()),
        output_signature=TensorSpec((2, 1), np.float32),
    )
    return frames.map(lambda frame: frame.reshape(2))


def from_generator_of_dicts(reader):
    def elements():
        element = {}
        for frame in reader():
            element["frame"] = frame
            yield element

    return Dataset.from_generator(elements, output_signature={"frame": FRAME}).map(
        lambda element: element["frame"]
    )


def mapped(reader, **options):
    return Dataset.range(6).map(lambda number: reader.read(int(number)), **options)


def flat_mapped(reader):
    return Dataset.range(6).flat_map(lambda number: Dataset.from_tensors(reader.read(int(number))))


def interleaved(reader):
    return Dataset.range(6).interleave(
        lambda number: Dataset.from_tensor_slices(reader.read(int(number))[None]), cycle_length=3
    )


def scanned(reader):
    return Dataset.range(6).scan(np.int64(0), lambda state, x: (state, reader.read(int(x))))


def zipped(reader):
    return Dataset.zip((Dataset.range(6), from_generator(reader))).map(lambda number, frame: frame)


def grouped(reader):
    return from_generator(reader).group_by_window(
        lambda frame: np.int64(0), lambda key, group: group, window_size=2
    )


SOURCES = {
    "generator": from_generator,
    "generator of views": from_generator_of_views,
    "generator of one dict": from_generator_of_dicts,
    "map": mapped,
    "parallel map of one call": lambda reader: mapped(reader, num_parallel_calls=1),
    "flat_map": flat_mapped,
    "interleave": interleaved,
    "scan": scanned,
    "zip": zipped,
    "group_by_window": grouped,
}


def in_files(tmp_path):
    def save_and_load(dataset):
        dataset.save(tmp_path / "saved")
        return Dataset.load(tmp_path / "saved")

    return save_and_load


KEEPERS = {
    "list": lambda tmp_path: lambda frames: frames,
    "batch": lambda tmp_path: lambda frames: frames.batch(3).unbatch(),
    "padded_batch": lambda tmp_path: lambda frames: frames.padded_batch(3).unbatch(),
    "shuffle": lambda tmp_path: lambda frames: frames.shuffle(6, seed=1),
    "prefetch": lambda tmp_path: lambda frames: frames.prefetch(4),
    "window": lambda tmp_path: lambda frames: frames.window(3).flat_map(lambda window: window),
    "cache": lambda tmp_path: lambda frames: frames.cache().repeat(2).skip(6),
    "cache in a file": lambda tmp_path: (
        lambda frames: frames.cache(str(tmp_path / "cache")).repeat(2).skip(6)
    ),
    "save": in_files,
    "snapshot": lambda tmp_path: (
        lambda frames: frames.snapshot(str(tmp_path / "snapshot")).repeat(2).skip(6)
    ),
}


def _pairs():
    """Every source meets some keepers and every keeper some sources; the other pairs are breadth."""
    for i, (source_name, source) in enumerate(SOURCES.items()):
        for k, (keeper_name, keep) in enumerate(KEEPERS.items()):
            marks = [] if (i + k) % 3 == 0 else pytest.mark.slow
            yield pytest.param(source, keep, id=f"{source_name}-{keeper_name}", marks=marks)


@pytest.mark.parametrize(("source", "keep"), list(_pairs()))
def test_a_buffer_that_is_filled_again_gives_what_it_held(source, keep, tmp_path):
    reader = Reader()
    frames = keep(tmp_path)(source(reader))
    elements = list(frames)
    assert reader.buffer.flags.writeable
    reader.buffer[:] = -1
    assert sorted(element[0] for element in elements) == SIX
    assert sorted(element[1] for element in elements) == SIX


@pytest.mark.parametrize("make", [Dataset.from_tensor_slices, Dataset.from_tensors])
@pytest.mark.parametrize(
    "given",
    [
        np.arange(4.0, dtype=np.float32),
        np.array([b"a", b"b"], object),
        np.arange(8.0)[::2],
        np.broadcast_to(ONE, (3,)),
        array.array("f", [0, 1]),
        memoryview(bytearray(4)),
    ],
    ids=["array", "strings", "strided", "broadcast", "array.array", "memoryview"],
)
def test_a_source_is_what_was_given_when_it_was_made(make, given):
    dataset = make({"x": given})
    before = [element["x"] for element in dataset.as_numpy_iterator()]
    original = given
    if isinstance(given, np.ndarray) and given.base is not None:
        original = given.base
    writable = np.asarray(original)
    kept = writable.copy()
    writable[...] = b"c" if writable.dtype == object else 7
    after = [element["x"] for element in dataset.as_numpy_iterator()]
    writable[...] = kept
    assert [np.asarray(x).tolist() for x in after] == [np.asarray(x).tolist() for x in before]


def test_memory_that_nobody_writes_to_is_not_copied(tmp_path):
    rows = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    rows.flags.writeable = False
    np.save(tmp_path / "rows.npy", rows)
    mapped_file = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for given in (rows, mapped_file, jnp.zeros((1024, 1024))):
        table = Dataset.from_tensor_slices(given).plan.random_access()
        assert np.shares_memory(table._arrays, np.asarray(given))
    made = np.zeros((2, 2), np.float32)
    element = next(iter(Dataset.range(1).map(lambda x: np.add(made, int(x)))))
    assert element.base is None or element.base.base is None


def test_arguments_of_a_generator_are_those_that_were_given():
    size = np.array([3])
    dataset = Dataset.from_generator(
        lambda size: iter(range(int(size[0]))),
        args=(size,),
        output_signature=TensorSpec((), np.int32),
    )
    size[0] = 1
    assert len(list(dataset)) == 3


def test_scan_and_reduce_leave_the_initial_state_alone():
    initial = np.zeros(1)

    def add(state, x):
        state += x
        return state

    sums = Dataset.range(1, 4).scan(initial, lambda state, x: (add(state, x), state))
    elements = list(itertools.chain(sums, sums))
    assert [float(x[0]) for x in elements] == [1, 3, 6, 1, 3, 6]
    assert float(Dataset.range(1, 4).reduce(initial, add)[0]) == 6
    assert initial[0] == 0
    buffer = np.zeros(1)

    def into_buffer(state, x):
        buffer[:] = state + x
        return buffer

    total = Dataset.range(1, 4).reduce(initial, into_buffer)
    buffer[:] = -1
    assert total[0] == 6


def cached_streams(tmp_path):
    frames = Dataset.from_generator(Reader(), output_signature=FRAME)
    yield "memory", frames.cache()
    yield "of dicts", frames.map(lambda frame: {"frame": frame}).cache()
    yield "file", frames.cache(str(tmp_path / "cache"))
    yield "table", Dataset.from_tensor_slices(np.zeros((6, 2))).map(lambda x: x + 1).cache()
    yield "snapshot", frames.snapshot(str(tmp_path / "snapshot"))
    yield "window", frames.window(4, shift=2).flat_map(lambda window: window)
    yield "repeated element", Dataset.from_tensors(np.zeros(2)).repeat(3)


@pytest.mark.parametrize("as_numpy", [False, True], ids=["iter", "as_numpy_iterator"])
def test_who_writes_into_an_element_changes_no_other(tmp_path, as_numpy):
    for name, dataset in cached_streams(tmp_path):

        def epoch(dataset=dataset):
            return dataset.as_numpy_iterator() if as_numpy else iter(dataset)

        expected = [str(element) for element in epoch()]
        for _ in range(2):
            seen = []
            for element in epoch():
                seen.append(str(element))
                leaf = element
                if isinstance(element, dict):
                    leaf = element["frame"]
                    element["frame"] = None
                    element["more"] = 1
                if leaf.flags.writeable:
                    leaf[...] = -1
            assert seen == expected, name


def test_a_snapshot_keeps_what_was_drawn_not_what_became_of_it(tmp_path):
    frames = Dataset.from_tensor_slices(np.array(SIX)[:, None])
    dataset = frames.snapshot(str(tmp_path / "snapshot"))
    for element in dataset:
        element[:] = -1
    assert [float(element[0]) for element in dataset] == SIX


def test_a_map_that_changes_a_cached_dict_changes_it_for_itself():
    frames = Dataset.from_generator(Reader(), output_signature=FRAME)
    cached = frames.map(lambda frame: {"frame": frame}).cache()

    def take_out(element):
        element["first"] = element.pop("frame")[0]
        return element

    for _ in range(3):
        assert [float(element["first"]) for element in cached.map(take_out)] == SIX
