import numpy as np
import pytest

import stratagem as sg
from stratagem._src.input import repeatable_order
from stratagem._src.input.sources import as_source


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def rows(distributed):
    return [np.concatenate([np.asarray(v) for v in x.values]).tolist() for x in distributed]


BATCHES = [np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)]
EXPECTED = [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_list_of_batches(strategy):
    distributed = strategy.experimental_distribute_dataset(BATCHES)
    assert len(distributed) == 2
    assert rows(distributed) == rows(distributed) == EXPECTED


def test_a_generator_can_be_read_once(strategy):
    distributed = strategy.experimental_distribute_dataset(batch for batch in BATCHES)
    assert rows(distributed) == EXPECTED
    with pytest.raises(ValueError, match="only once"):
        rows(distributed)


def test_an_iterable_resumes_by_reading_again(strategy):
    distributed = strategy.experimental_distribute_dataset(BATCHES)
    iterator = iter(distributed)
    next(iterator)
    state = iterator.get_state()
    other = iter(distributed)
    other.set_state(state)
    assert rows(other) == EXPECTED[1:]
    with pytest.raises(ValueError, match="has only 1"):
        as_source([1]).open(3)


def test_an_array_is_one_batch(strategy):
    distributed = strategy.experimental_distribute_dataset(np.arange(4.0, dtype=np.float32))
    assert len(distributed) == 1
    assert rows(distributed) == EXPECTED[:1]


def test_a_loader_that_fills_the_same_memory(strategy):
    memory = np.zeros(4, np.float32)

    def batches():
        for step in range(6):
            memory[:] = step
            yield memory

    assert rows(strategy.experimental_distribute_dataset(batches())) == [[s] * 4 for s in range(6)]


def test_batches_of_different_structure_in_one_step(strategy):
    distributed = strategy.distribute_datasets_from_function(
        lambda _: [np.ones(2), (np.ones(2), np.ones(2))]
    )
    with pytest.raises(ValueError, match="same structure"):
        list(distributed)


class TensorFlowLike:
    """What a ``tf.data.Dataset`` offers, as far as it is used."""

    def as_numpy_iterator(self):
        return iter(BATCHES)

    def __len__(self):
        return 2


def test_objects_that_look_like_tf_data(strategy):
    distributed = strategy.experimental_distribute_dataset(TensorFlowLike())
    assert len(distributed) == 2
    assert rows(distributed) == EXPECTED


class Loader:
    """Like torch's DataLoader: batches in the order of a sampler, which may have a generator."""

    def __init__(self, **sampler):
        self.sampler = type("RandomSampler", (), sampler)()
        self.batch_sampler = type("BatchSampler", (), {"sampler": self.sampler})()

    def __iter__(self):
        return iter(BATCHES)

    def __len__(self):
        return len(BATCHES)


def save(strategy, dataset, tmp_path):
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    next(iterator)
    path = sg.train.Checkpoint(iterator=iterator).save(str(tmp_path / "checkpoint"))
    restored = iter(strategy.experimental_distribute_dataset(dataset))
    sg.train.Checkpoint(iterator=restored).restore(path)
    return rows(restored)


def test_a_position_in_a_random_order_is_not_saved(strategy, tmp_path):
    with pytest.raises(sg.errors.UnsupportedError, match=r"manual_seed\(epoch\)"):
        save(strategy, Loader(generator=None), tmp_path)
    from_function = strategy.distribute_datasets_from_function(lambda _: Loader(generator=None))
    with pytest.raises(sg.errors.UnsupportedError, match="repeat and skip examples"):
        iter(from_function).get_state()


@pytest.mark.parametrize(
    ("dataset", "is_warned"),
    [
        (Loader(), False),
        (Loader(generator=object()), False),
        (BATCHES, False),
        (sg.data.Dataset.from_tensor_slices(np.arange(8, dtype=np.float32)).batch(4), False),
        (TensorFlowLike(), True),
    ],
    ids=["sequential", "seeded", "list", "own", "unknown"],
)
def test_a_position_in_an_unknown_order_is_saved_with_a_warning(
    strategy, tmp_path, caplog, monkeypatch, dataset, is_warned
):
    monkeypatch.setattr(repeatable_order, "_warned", [])
    assert save(strategy, dataset, tmp_path) == EXPECTED[1:]
    assert ("the number of elements read" in caplog.text) == is_warned


@pytest.mark.peer("torch")
def test_the_position_in_a_torch_loader_that_shuffles(strategy, tmp_path):
    import torch

    def loader(**options):
        return torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, **options)

    def seeded():
        return loader(shuffle=True, generator=torch.Generator().manual_seed(0))

    with pytest.raises(sg.errors.UnsupportedError, match="RandomSampler without a generator"):
        save(strategy, loader(shuffle=True), tmp_path)
    for make in (loader, seeded):
        iterator = iter(strategy.experimental_distribute_dataset(make()))
        next(iterator)
        state, expected = iterator.get_state(), rows(iterator)
        again = iter(strategy.experimental_distribute_dataset(make()))
        again.set_state(state)
        assert rows(again) == expected


@pytest.mark.peer("torch")
def test_torch_data_loader(strategy):
    import torch

    data = torch.utils.data.TensorDataset(torch.arange(8.0), torch.arange(8))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    elements = list(strategy.experimental_distribute_dataset(loader))
    assert [np.concatenate(x[0].values).tolist() for x in elements] == EXPECTED
    assert elements[0][1].values[0].dtype == np.int32


@pytest.mark.peer("tensorflow")
def test_tf_data(strategy):
    import tensorflow as tf

    dataset = tf.data.Dataset.range(8, output_type=tf.float32).batch(4)
    distributed = strategy.experimental_distribute_dataset(dataset)
    assert len(distributed) == 2
    assert rows(distributed) == EXPECTED


def test_grain(strategy):
    grain = pytest.importorskip("grain")
    dataset = grain.MapDataset.source(np.arange(8.0, dtype=np.float32)).batch(4)
    assert rows(strategy.experimental_distribute_dataset(dataset)) == EXPECTED
    assert rows(strategy.experimental_distribute_dataset(dataset.to_iter_dataset())) == EXPECTED


def test_numpy_dataset(strategy):
    dataset = strategy.experimental_make_numpy_dataset(np.ones([10], dtype=np.float32))
    assert len(dataset) == 10
    distributed = strategy.experimental_distribute_dataset(dataset.batch(4))
    assert [len(r) for r in rows(distributed)] == [4, 4, 2]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (5, "iterable of batches"),
        (np.ones(()), "batched by the global batch size"),
        ([1.0, 2.0], "batched by the global batch size"),
        ([{}], "must contain arrays"),
        ([(np.ones(2), np.ones(3))], "same number of rows"),
    ],
)
def test_what_cannot_be_distributed(strategy, dataset, message):
    with pytest.raises(ValueError, match=message):
        list(strategy.experimental_distribute_dataset(dataset))


def test_a_shard_hint_with_one_worker():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    hint = sg.data.experimental.SHARD_HINT
    hinted = sg.data.Dataset.range(8).shard(hint, hint).batch(4)
    with pytest.raises(RuntimeError, match=r"AutoShardPolicy\.HINT"):
        next(iter(strategy.experimental_distribute_dataset(hinted)))
    options = sg.data.Options()
    options.experimental_distribute.auto_shard_policy = sg.data.experimental.AutoShardPolicy.HINT
    distributed = strategy.experimental_distribute_dataset(hinted.with_options(options))
    assert [[v.tolist() for v in x.values] for x in distributed] == [
        [[0, 1], [2, 3]], [[4, 5], [6, 7]],
    ]  # fmt: skip


def test_an_array_is_the_batch_that_was_given(strategy):
    batch = np.arange(4.0, dtype=np.float32)
    distributed = strategy.experimental_distribute_dataset(batch)
    batch[:] = -1
    assert rows(distributed) == EXPECTED[:1]


def test_loaders_that_fill_the_same_memory_in_other_ways(strategy):
    memory = np.zeros((2, 4), np.float32)
    held = {"x": memory[0], "y": (memory[1],)}

    class Tensor:
        """As of PyTorch: its memory is that of the NumPy array."""

        def detach(self):
            return self

        cpu = detach

        def numpy(self):
            return memory[0]

    def nests():
        for step in range(4):
            memory[:] = step
            yield held

    def tensors():
        for step in range(4):
            memory[:] = step
            yield Tensor()

    elements = list(strategy.experimental_distribute_dataset(nests()))
    assert rows(element["x"] for element in elements) == [[s] * 4 for s in range(4)]
    assert rows(element["y"][0] for element in elements) == [[s] * 4 for s in range(4)]
    elements = list(strategy.experimental_distribute_dataset(tensors()))
    assert rows(elements) == [[s] * 4 for s in range(4)]


def test_what_a_loader_has_just_made_is_not_copied():
    def batches():
        for _ in range(3):
            made.append(np.zeros(1 << 18))
            places.append(made[-1].ctypes.data)
            yield made.pop()

    made, places = [], []
    elements = list(as_source(batches()).open(None))
    assert [element.ctypes.data for element in elements] == places


def test_values_of_a_function_that_fills_one_buffer(strategy):
    buffer = np.zeros(3, np.float32)

    def value_fn(context):
        buffer[:] = context.replica_id_in_sync_group
        return {"x": buffer}

    values = strategy.experimental_distribute_values_from_function(value_fn)
    buffer[:] = -1
    assert [np.asarray(value).tolist() for value in values["x"].values] == [[0] * 3, [1] * 3]
