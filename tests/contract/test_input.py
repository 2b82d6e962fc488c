import copy
import gc
import json
import pickle
import threading
import traceback
import types

import jax.numpy as jnp
import numpy as np
import pytest
from replicas import IN_WORKERS, components, one_process

import stratagem as sg

pytestmark = pytest.mark.about("input")

Dataset = sg.data.Dataset


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name == "input-prefetch"]


def parts(strategy, element):
    return [np.asarray(p).tolist() for p in components(strategy, element)]


def rows(strategy, element):
    return [row for part in parts(strategy, element) for row in part]


@pytest.mark.layout
def test_each_batch_is_divided_between_the_replicas(strategy):
    n = strategy.num_replicas_in_sync
    dataset = Dataset.range(4 * n + 1).batch(2 * n)
    elements = list(strategy.experimental_distribute_dataset(dataset))
    assert [rows(strategy, e) for e in elements] == [
        list(range(2 * n)), list(range(2 * n, 4 * n)), [4 * n],
    ]  # fmt: skip
    assert [len(p) for p in parts(strategy, elements[0])] == [2] * n
    lengths = [len(p) for p in parts(strategy, elements[2])]
    # Workers take turns with rows that cannot be divided.
    assert (sorted(lengths, reverse=True) if IN_WORKERS else lengths) == [1] + [0] * (n - 1)


def test_elements_live_on_the_replicas_devices(placed_strategy):
    dataset = Dataset.from_tensor_slices({"x": np.ones((8, 2), np.float32)}).batch(8)
    (element,) = placed_strategy.experimental_distribute_dataset(dataset)
    for part, device in zip(
        placed_strategy.experimental_local_results(element["x"]),
        placed_strategy.replica_group.local_devices,
        strict=True,
    ):
        assert part.devices() == {device}


def test_batches_can_stay_on_the_host(strategy):
    options = sg.distribute.InputOptions(experimental_fetch_to_device=False)
    dataset = Dataset.range(8).batch(8)
    (element,) = strategy.experimental_distribute_dataset(dataset, options)
    for part in strategy.experimental_local_results(element):
        assert isinstance(part, np.ndarray)
        assert part.dtype == np.int64
    result = strategy.run(lambda x: jnp.sum(x), args=(element,))
    assert sum(int(r) for r in components(strategy, result)) == 28


def test_strings_stay_on_the_host(strategy):
    dataset = Dataset.from_tensor_slices(([b"a", b"b", b"c", b"d"], np.arange(4))).batch(4)
    ((text, number),) = strategy.experimental_distribute_dataset(dataset)
    assert rows(strategy, text) == [b"a", b"b", b"c", b"d"]
    assert rows(strategy, number) == [0, 1, 2, 3]


def test_numbers_too_large_for_32_bits(strategy):
    dataset = Dataset.from_tensor_slices(np.array([1, 2**40])).batch(2)
    # A worker that has only small numbers is told of the other's error.
    errors = (ValueError, RuntimeError) if IN_WORKERS else ValueError
    with pytest.raises(errors, match="64-bit mode"):
        list(strategy.experimental_distribute_dataset(dataset))


@pytest.mark.not_on(
    "parameter_server2", reason="the function is called where and when the dataset is iterated over"
)
@one_process("every worker has a pipeline of its own")
def test_datasets_from_a_function(strategy):
    n = strategy.num_replicas_in_sync
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return Dataset.range(4 * n).batch(context.get_per_replica_batch_size(2 * n))

    distributed = strategy.distribute_datasets_from_function(dataset_fn)
    (context,) = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    assert context.num_replicas_in_sync == n
    assert len(distributed) == 2
    elements = list(distributed)
    assert parts(strategy, elements[0]) == [[2 * i, 2 * i + 1] for i in range(n)]
    older = strategy.experimental_distribute_datasets_from_function(dataset_fn)
    assert [rows(strategy, e) for e in older] == [rows(strategy, e) for e in elements]


@pytest.mark.layout
def test_a_function_called_for_each_replica(many):
    n = many.num_replicas_in_sync
    options = sg.distribute.InputOptions(
        experimental_replication_mode=sg.distribute.InputReplicationMode.PER_REPLICA
    )

    def dataset_fn(context):
        assert context.num_input_pipelines == n
        i = context.input_pipeline_id
        return Dataset.range(10 * i, 10 * i + i + 1).batch(1)

    elements = list(many.distribute_datasets_from_function(dataset_fn, options))
    assert len(elements) == n
    assert parts(many, elements[0]) == [[10 * i] for i in range(n)]
    assert parts(many, elements[-1]) == [[] for _ in range(n - 1)] + [[10 * (n - 1) + n - 1]]


@one_process("every worker has a pipeline of its own")
def test_no_batch_is_lost_at_the_end(many):
    n = many.num_replicas_in_sync
    distributed = many.distribute_datasets_from_function(
        lambda _: Dataset.range(2 * n + 2).batch(2)
    )
    elements = list(distributed)
    assert len(distributed) == len(elements) == 2
    assert parts(many, elements[1]) == [[2 * n, 2 * n + 1]] + [[]] * (n - 1)


@one_process("every worker has a pipeline of its own")
def test_full_batches_end_when_a_replica_has_none(many):
    n = many.num_replicas_in_sync
    distributed = many.distribute_datasets_from_function(
        lambda _: Dataset.range(2 * n + 2).batch(2, drop_remainder=True)
    )
    elements = list(distributed)
    assert len(distributed) == len(elements) == 1
    assert parts(many, elements[0]) == [[2 * i, 2 * i + 1] for i in range(n)]
    assert {spec.shape for spec in distributed.element_spec.value_specs} == {(2,)}


@one_process("every worker has a pipeline of its own")
def test_elements_that_are_not_batches_are_dealt_too(strategy, execute):
    n = strategy.num_replicas_in_sync
    for numbers in (Dataset.range(2 * n + n - 1), list(np.arange(2 * n + n - 1))):
        distributed = strategy.distribute_datasets_from_function(lambda _, d=numbers: d)
        elements = list(distributed)
        assert [parts(strategy, e) for e in elements] == [
            list(range(i, i + n)) for i in range(0, 2 * n, n)
        ]
        results = execute(lambda e: strategy.run(lambda x: x + 1, args=(e,)), elements[0])
        assert [int(v) for v in components(strategy, results)] == list(range(1, n + 1))


@one_process("one replica means one process")
def test_one_replica_takes_elements_that_are_not_batches(strategy):
    dataset = Dataset.range(3).map(lambda x: (x, [1.5, 2.5, 3.5]))
    distributed = strategy.experimental_distribute_dataset(dataset)
    if strategy.num_replicas_in_sync > 1:
        with pytest.raises(ValueError, match="batched by the global batch size"):
            list(distributed)
        return
    elements = list(distributed)
    assert [int(x) for x, _ in elements] == [0, 1, 2]
    assert np.asarray(elements[0][1]).tolist() == [1.5, 2.5, 3.5]
    assert distributed.element_spec[0].shape == ()
    state = iter(distributed)
    next(state)
    resumed = iter(distributed)
    resumed.set_state(state.get_state())
    assert [int(x) for x, _ in resumed] == [1, 2]


@one_process("the shapes of several workers' parts are not known")
def test_static_shapes_are_kept(strategy):
    n = strategy.num_replicas_in_sync
    full = Dataset.range(9 * n).batch(2 * n, drop_remainder=True)
    spec = strategy.experimental_distribute_dataset(full).element_spec
    assert {s.shape for s in (spec.value_specs if n > 1 else [spec])} == {(2,)}
    if n > 1:
        odd = Dataset.range(9 * n).batch(2 * n + 1, drop_remainder=True)
        spec = strategy.experimental_distribute_dataset(odd).element_spec
        assert {s.shape for s in spec.value_specs} == {(None,)}


def test_training_over_a_dataset(strategy, execute):
    with strategy.scope():
        total = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)
    data = np.arange(23, dtype=np.float32)
    distributed = strategy.experimental_distribute_dataset(
        Dataset.from_tensor_slices(data).shuffle(23).batch(4)
    )

    def step(x):
        return strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))

    for epoch in (1, 2):
        for x in distributed:
            execute(step, x)
        assert float(total) == epoch * data.sum()


def test_next_inside_a_function(strategy):
    n = strategy.num_replicas_in_sync
    distributed = strategy.experimental_distribute_dataset(Dataset.range(5 * n + 1).batch(2 * n))
    traces = []

    @sg.function
    def step(iterator):
        traces.append(1)
        x = next(iterator)
        return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x), args=(x,)), axis=None)

    for _ in range(2):
        iterator = iter(distributed)
        sums = [int(step(iterator)) for _ in range(3)]
        assert sum(sums) == sum(range(5 * n + 1))
        with pytest.raises(sg.errors.OutOfRangeError):
            step(iterator)
    assert step.experimental_get_tracing_count() <= 2


@pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
def test_elements_that_stay_on_the_host_are_new_in_each_call(strategy, captured):
    n = strategy.num_replicas_in_sync
    options = sg.distribute.InputOptions(experimental_fetch_to_device=False)
    dataset = Dataset.from_tensor_slices(np.arange(8 * n, dtype=np.float32)).batch(2 * n)
    iterator = iter(strategy.experimental_distribute_dataset(dataset, options))

    @sg.function
    def step(given=None):
        x = next(iterator if captured else given)
        return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x), args=(x,)), axis=None)

    batches = np.arange(8 * n).reshape(4, -1)
    sums = [float(step() if captured else step(iterator)) for _ in batches]
    assert sums == batches.sum(1).tolist()
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
def test_next_of_a_plain_dataset_inside_a_function(strategy, captured):
    iterator = iter(Dataset.from_tensor_slices(np.arange(7, dtype=np.float32)).batch(2))

    @sg.function
    def step(given=None):
        x = next(iterator if captured else given)
        return strategy.run(lambda x: jnp.sum(x), args=(x,))

    for expected in (1.0, 5.0, 9.0, 6.0):
        results = components(strategy, step() if captured else step(iterator))
        assert [float(x) for x in results] == [expected] * strategy.num_replicas_in_sync
    with pytest.raises(sg.errors.OutOfRangeError):
        step() if captured else step(iterator)
    assert step.experimental_get_tracing_count() == 2  # the last batch is smaller


@one_process("Each worker would shuffle for itself.")
def test_a_loop_over_a_plain_dataset_inside_a_function(strategy):
    dataset = Dataset.from_tensor_slices(np.arange(64)).shuffle(64).batch(32)

    @sg.function
    def epoch():
        return [strategy.run(lambda x: x + 0, args=(x,)) for x in dataset]

    orders = [
        [int(i) for batch in epoch() for i in np.asarray(components(strategy, batch)[0])]
        for _ in range(3)
    ]
    assert all(sorted(order) == list(range(64)) for order in orders)
    assert orders[0] != orders[1] != orders[2]


def test_several_elements_and_a_captured_iterator_in_one_function(strategy):
    n = strategy.num_replicas_in_sync
    iterator = iter(strategy.experimental_distribute_dataset(Dataset.range(6 * n).batch(n)))

    @sg.function
    def two_steps():
        first, second = next(iterator), next(iterator)
        return strategy.run(lambda a, b: (a[0], b[0]), args=(first, second))

    firsts = []
    for _ in range(3):
        a, b = two_steps()
        firsts += [int(parts(strategy, v)[0]) for v in (a, b)]
    assert firsts == [i * n for i in range(6)]
    with pytest.raises(sg.errors.OutOfRangeError):
        two_steps()


@pytest.mark.parametrize("extra", [0, 1], ids=["even", "partial"])
def test_an_element_is_not_lost_when_the_call_fails(strategy, extra):
    size = 8 * strategy.num_replicas_in_sync + extra
    dataset = Dataset.range(2 * size).batch(size)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    @sg.function
    def step(iterator, fail):
        x = next(iterator)
        if fail:
            raise RuntimeError("on purpose")
        return strategy.run(lambda x: x * 1, args=(x,))

    with pytest.raises(RuntimeError, match="on purpose"):
        step(iterator, True)
    assert rows(strategy, step(iterator, False)) == list(range(size))
    assert rows(strategy, next(iterator)) == list(range(size, 2 * size))


def test_a_loop_inside_a_function(strategy):
    n = strategy.num_replicas_in_sync
    distributed = strategy.experimental_distribute_dataset(Dataset.range(6 * n + 1).batch(2 * n))
    with strategy.scope():
        seen = sg.Variable(0, aggregation=sg.VariableAggregation.SUM)

    @sg.function
    def epoch(dataset):
        def replica_fn(x):
            seen.assign_add(jnp.asarray(x.shape[0], jnp.int32))
            return jnp.sum(x)

        total = 0
        for x in dataset:
            total += strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)
        return total

    for i in (1, 2, 3):
        assert int(epoch(distributed)) == sum(range(6 * n + 1))
        assert int(seen) == i * (6 * n + 1)
    assert epoch.experimental_get_tracing_count() <= 2


@pytest.mark.parametrize("captured", [False, True])
def test_a_loop_over_the_rest_of_an_iterator_inside_a_function(strategy, captured):
    n = strategy.num_replicas_in_sync
    distributed = strategy.experimental_distribute_dataset(Dataset.range(8 * n).batch(2 * n))

    def rest(iterator):
        total = 0
        for x in iterator:
            total += strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None)
        return total

    for _ in range(2):
        iterator = iter(distributed)
        next(iterator)
        if captured:
            total = sg.function(lambda iterator=iterator: rest(iterator))()
        else:
            total = sg.function(rest)(iterator)
        assert int(total) == sum(range(2 * n, 8 * n))
        assert next(iterator, None) is None


@pytest.mark.layout
def test_iterator_states(strategy):
    dataset = Dataset.range(24).shuffle(24, seed=5).repeat(2).batch(5)
    distributed = strategy.experimental_distribute_dataset(dataset)
    whole = iter(distributed)
    beginning = whole.get_state()
    everything = [rows(strategy, e) for e in whole]
    for stop in range(len(everything)):
        iterator = iter(distributed)
        iterator.set_state(beginning)
        for _ in range(stop):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        restored = iter(distributed)
        next(restored)
        restored.set_state(state)
        assert [rows(strategy, e) for e in restored] == everything[stop:]
    with pytest.raises(ValueError, match="get_state"):
        iter(distributed).set_state({"x": 1})


def test_the_end_of_the_data(strategy):
    iterator = iter(strategy.experimental_distribute_dataset(Dataset.range(4).batch(4)))
    assert iterator.get_next_as_optional().has_value()
    end = iterator.get_next_as_optional()
    assert not end.has_value()
    for call in (end.get_value, iterator.get_next):
        with pytest.raises(sg.errors.OutOfRangeError):
            call()
    with pytest.raises(StopIteration):
        next(iterator)


def test_reduce_enumerate_and_specs(strategy):
    n = strategy.num_replicas_in_sync
    distributed = strategy.experimental_distribute_dataset(Dataset.range(4 * n).batch(2 * n))
    total = distributed.reduce(0, lambda s, x: s + strategy.reduce("SUM", x, axis=0))
    assert int(total) == sum(range(4 * n))
    assert [i for i, _ in distributed.enumerate(start=5)] == [5, 6]
    spec = distributed.element_spec
    component = spec.value_specs[0] if n > 1 else spec
    assert component.shape == (None,)
    assert iter(distributed).element_spec == spec
    endless = strategy.experimental_distribute_dataset(Dataset.range(4).repeat().batch(2))
    with pytest.raises(TypeError, match="infinite"):
        len(endless)


def test_next_in_replica_context(placed_strategy, execute):
    iterator = iter(placed_strategy.experimental_distribute_dataset(Dataset.range(4).batch(4)))
    with pytest.raises(ValueError, match="replica context"):
        execute(lambda: placed_strategy.run(lambda: next(iterator)))


def test_an_error_in_the_pipeline_reaches_the_consumer(strategy):
    def fail_at_two(x):
        if int(x) == 2:
            raise KeyError("in the user's function")
        return x

    dataset = Dataset.range(8).map(fail_at_two).batch(1)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    next(iterator)
    next(iterator)
    with pytest.raises(KeyError, match="in the user's function") as raised:
        next(iterator)
    assert any("fail_at_two" in frame.name for frame in traceback.extract_tb(raised.tb))
    with pytest.raises(StopIteration):
        next(iterator)


def test_the_thread_ends_when_the_loop_breaks(strategy):
    for _ in strategy.experimental_distribute_dataset(Dataset.range(4).repeat().batch(4)):
        break
    gc.collect()
    for thread in prefetch_threads():
        thread.join(10)
    assert not prefetch_threads()


@pytest.mark.not_on(
    "parameter_server2", reason="the function is called where and when the dataset is iterated over"
)
def test_wrong_options(strategy):
    with pytest.raises(ValueError, match="not supported"):
        sg.distribute.InputOptions(experimental_place_dataset_on_device=True)
    with pytest.raises(ValueError, match="at least 1"):
        sg.distribute.InputOptions(experimental_per_replica_buffer_size=0)
    per_replica = sg.distribute.InputOptions(experimental_replication_mode="PER_REPLICA")
    with pytest.raises(ValueError, match="distribute_datasets_from_function"):
        strategy.experimental_distribute_dataset(Dataset.range(2).batch(2), per_replica)
    with pytest.raises(ValueError, match="Use 4 or 8"):
        sg.distribute.InputContext(num_replicas_in_sync=4).get_per_replica_batch_size(6)
    with pytest.raises(ValueError, match="iterable of batches"):
        strategy.distribute_datasets_from_function(lambda _: 5)


def test_prefetching_does_not_run_further_than_asked(strategy):
    produced = []

    def note(x):
        produced.append(int(x))
        return x

    options = sg.distribute.InputOptions(experimental_per_replica_buffer_size=2)
    dataset = Dataset.range(100).map(note).batch(1)
    iterator = iter(strategy.experimental_distribute_dataset(dataset, options))
    next(iterator)
    deadline = threading.Event()
    deadline.wait(0.2)
    # Workers also compare up to 8 steps at once, and read up to 8 ahead of those.
    compared = 8 + 8 + 1 if strategy.replica_group.spans_processes else 0
    assert len(produced) <= 1 + 2 + 2 + compared
    del iterator


def test_elements_of_a_function_use_compiled_signatures(strategy):
    """Feeding elements as arguments compiles once, too."""
    n = strategy.num_replicas_in_sync
    distributed = strategy.experimental_distribute_dataset(Dataset.range(8 * n).batch(2 * n))
    step = sg.function(lambda x: strategy.run(lambda x: x + 1, args=(x,)))
    for x in distributed:
        step(x)
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_distributed_iterator_is_not_copied(strategy, way):
    iterator = iter(strategy.experimental_distribute_dataset(Dataset.range(8).batch(8)))
    with pytest.raises(TypeError, match="get_state"):
        way(iterator)


def test_the_data_end_between_two_draws_of_an_uneven_call(strategy):
    n = strategy.num_replicas_in_sync
    dataset = Dataset.range(4 * n + 1).batch(2 * n)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    @sg.function
    def two(iterator):
        a, b = next(iterator), next(iterator)
        return strategy.run(lambda a, b: jnp.sum(a) + jnp.sum(b), args=(a, b))

    total = sum(int(v) for v in components(strategy, two(iterator)))
    assert total == sum(range(4 * n))
    for _ in range(2):
        with pytest.raises(sg.errors.OutOfRangeError):
            two(iterator)
    assert rows(strategy, next(iterator)) == [4 * n]


def test_what_else_stops_in_a_function_is_not_the_end_of_the_data(strategy):
    iterator = iter(strategy.experimental_distribute_dataset(Dataset.range(8).batch(8)))

    @sg.function
    def stops(iterator):
        next(iterator)
        return next(iter([]))

    with pytest.raises(StopIteration):
        stops(iterator)


def test_optional_elements_inside_a_function(strategy):
    n = strategy.num_replicas_in_sync
    distributed = strategy.experimental_distribute_dataset(Dataset.range(4 * n + 1).batch(2 * n))

    @sg.function
    def total(iterator):
        optional = iterator.get_next_as_optional()
        if not optional.has_value():
            return jnp.int32(-1)
        results = strategy.run(lambda x: jnp.sum(x), args=(optional.get_value(),))
        return strategy.reduce("SUM", results, axis=None)

    expected = [sum(range(2 * n)), sum(range(2 * n, 4 * n)), 4 * n, -1, -1]
    for _ in range(2):
        iterator = iter(distributed)
        assert [int(total(iterator)) for _ in range(5)] == expected
    # One program with an element and one without; the uneven element runs eagerly.
    assert total.experimental_get_tracing_count() <= 3


def test_an_optional_does_not_lose_the_elements_before_it(strategy):
    iterator = iter(strategy.experimental_distribute_dataset(Dataset.range(16).batch(8)))

    @sg.function
    def two(iterator):
        first, second = iterator.get_next_as_optional(), iterator.get_next_as_optional()
        count = first.has_value() + second.has_value()
        third = iterator.get_next_as_optional() if count == 2 else None
        return jnp.int32(count), (None if third is None else jnp.int32(third.has_value()))

    assert [x if x is None else int(x) for x in two(iterator)] == [2, 0]
    assert int(two(iterator)[0]) == 0


class Sub(dict):
    pass


class Pair:
    """What the attrs library makes: a class with a list of its attributes."""

    __attrs_attrs__ = (types.SimpleNamespace(name="a"), types.SimpleNamespace(name="b"))

    def __init__(self, a, b):
        self.a, self.b = a, b


def test_elements_in_containers_of_the_users_own(strategy, execute):
    n = strategy.num_replicas_in_sync
    numbers = np.arange(2 * n)
    nest = Sub(x=numbers, n=None, pair=Pair(numbers, numbers * 2))
    dataset = Dataset.from_tensor_slices(nest).batch(2 * n)
    (element,) = strategy.experimental_distribute_dataset(dataset)
    assert type(element) is Sub
    assert type(element["pair"]) is Pair
    assert element["n"] is None
    assert rows(strategy, element["pair"].b) == (numbers * 2).tolist()

    def step(element):
        assert type(element) is Sub
        assert element["n"] is None
        return jnp.sum(element["x"] + element["pair"].b)

    results = execute(lambda element: strategy.run(step, args=(element,)), element)
    assert sum(int(v) for v in components(strategy, results)) == 3 * numbers.sum()


def test_containers_drawn_inside_a_function(strategy):
    dataset = Dataset.from_tensor_slices(Sub(x=np.arange(16))).batch(8)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    @sg.function
    def total(iterator):
        element = next(iterator)
        assert type(element) is Sub
        results = strategy.run(lambda e: jnp.sum(e["x"]), args=(element,))
        return strategy.reduce("SUM", results, axis=None)

    assert [int(total(iterator)) for _ in range(2)] == [28, 92]
    assert total.experimental_get_tracing_count() == 1
