"""``MultiWorkerMirroredStrategy`` in real workers: what is special to several processes."""

import functools
import itertools
import json
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from task_functions import task

import stratagem as sg
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem.data.experimental import SHARD_HINT, AutoShardPolicy
from stratagem.testing import run_cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]

Dataset = sg.data.Dataset
SUM, ON_READ = sg.VariableAggregation.SUM, sg.VariableSynchronization.ON_READ
Implementation = sg.distribute.experimental.CommunicationImplementation
Options = sg.distribute.experimental.CommunicationOptions


def make_strategy():
    options = Options(timeout_seconds=30)
    return sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def replica_id():
    return sg.distribute.get_replica_context().replica_id_in_sync_group


def parts(strategy, value):
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]


# --- variables and values -------------------------------------------------------------------------


def initial_values(strategy, worker):
    """Returns variables as this worker has them, made from values that only the leader should give."""
    own = {
        "float": jnp.arange(3.0) + 10 * worker,
        "int8": np.array([worker, -1], np.int8),
        "bool": np.array([worker == 0, True, False]),
        "half": jnp.full((2, 2), 0.5 + worker, jnp.bfloat16),
        "nan": np.array([np.nan, np.inf, -0.0 + worker], np.float32),
        "empty": np.zeros((0, 2), np.float32),
        "number": 7 + worker,
    }
    made = {}

    @sg.function
    def create(x):
        if not made:
            made["traced"] = sg.Variable(x * 2 + worker)
            made["constant"] = sg.Variable(jnp.ones(2) + worker)
            made["read"] = sg.Variable(x, synchronization=ON_READ, aggregation=SUM)
        return made["traced"] + 0

    with strategy.scope():
        made_outside = {name: sg.Variable(value) for name, value in own.items()}
        statistics = sg.Variable(1.0 + worker, synchronization=ON_READ, aggregation=SUM)
        create(jnp.float32(5 + 100 * worker))
    variables = {**made_outside, **made, "statistics": statistics}
    return {name: parts(strategy, v) for name, v in variables.items()}


def sums_of_host_values(strategy, worker):
    def total(x):
        return strategy.reduce("SUM", x, axis=None)

    mine = jnp.float32(worker + 1)
    compiled = sg.function(total)(mine)
    own_mean = strategy.reduce("MEAN", mine, axis=None)
    return [float(total(mine)), float(total(worker + 1)), float(compiled), float(own_mean)]


def sum_in_merge_call(strategy, worker):
    def merge(strategy, x):
        return strategy.reduce("SUM", 5.0, axis=None)

    def step():
        return sg.distribute.get_replica_context().merge_call(merge, args=(replica_id(),))

    eager = strategy.run(step)
    compiled = sg.function(lambda: strategy.run(step))()
    return parts(strategy, eager) + parts(strategy, compiled)


def unequal_shapes(strategy, worker):
    ragged = strategy.experimental_distribute_values_from_function(
        lambda ctx: np.arange(2 * ctx.replica_id_in_sync_group, dtype=np.int32).reshape(2, -1)
    )
    gathered = strategy.gather(ragged, axis=1)
    mean = strategy.reduce("MEAN", ragged, axis=(0, 1))
    return np.asarray(gathered).tolist(), float(mean)


def packed(strategy, worker):
    def step():
        arrays = [jnp.arange(float(k)) + replica_id() for k in range(1, 5)]
        context = sg.distribute.get_replica_context()
        return context.all_reduce("SUM", arrays, options=Options(bytes_per_pack=12))

    eager, compiled = strategy.run(step), sg.function(lambda: strategy.run(step))()
    return [[parts(strategy, x)[-1] for x in result] for result in (eager, compiled)]


def what_processes_hold_is_not_taken_for_equal(strategy, worker):
    with strategy.scope():
        v = sg.Variable(0.0)
    v.assign(worker + 1.0)  # nobody compares what each worker assigns
    mine = jnp.full(2, worker + 1.0)

    @sg.function
    def sums(given):
        def step(given):
            inner = jax.jit(lambda x: x * mine)
            values = (given, mine * 2, inner(given), v.value())
            return sg.distribute.get_replica_context().all_reduce("SUM", values)

        return strategy.run(step, args=(given,))

    return [np.ravel(parts(strategy, x)[-1]).tolist() for x in sums(mine)]


def different_variables(strategy, worker):
    with strategy.scope():
        try:
            sg.Variable(jnp.ones(2 + worker), name=f"of_{worker}")
        except ValueError as error:
            return str(error)
    return None


def variables_outside_of_the_scope(strategy, worker):
    """Each worker has its own: an Optimizer may not sum the gradients of all for different models."""
    warned = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())
    logging.getLogger("stratagem").addHandler(handler)

    def train(value):
        w, optimizer = sg.Variable(value, name="w"), sg.train.Optimizer(optax.sgd(0.1))
        step = sg.function(lambda: strategy.run(lambda: optimizer.apply(jnp.ones(()), w)))
        try:
            step()
        except ValueError as error:
            return str(error)
        return float(w)

    found = {"different": train(float(worker)), "equal": train(1.0)}
    counter, statistic = sg.Variable(0), sg.Variable(0.0, trainable=False)
    strategy.run(lambda: [v.assign_add(1) for v in (counter, statistic)][:0])
    found["quiet"] = list(warned)
    for number in range(2):
        w = sg.Variable(1.0, name=f"w{number}")
        sg.function(lambda w=w: strategy.run(lambda: [w.assign_sub(0.1)][:0]))()
    logging.getLogger("stratagem").removeHandler(handler)
    return {**found, "warned": warned}


def use_of_values():
    worker = task()[1]
    strategy = make_strategy()
    checks = (
        initial_values, sums_of_host_values, sum_in_merge_call, unequal_shapes, packed,
        what_processes_hold_is_not_taken_for_equal, different_variables, variables_outside_of_the_scope,
    )  # fmt: skip
    found = {check.__name__: check(strategy, worker) for check in checks}
    extended = strategy.extended
    found["devices"] = extended.worker_devices
    found["leads"] = (extended.should_checkpoint, extended.should_save_summary)
    found["replicas"] = strategy.num_replicas_in_sync
    found["ids"] = parts(strategy, strategy.run(replica_id))
    found["resolver"] = strategy.cluster_resolver.task_id
    ones = strategy.run(lambda: jnp.ones(1))
    with pytest.raises(ValueError, match="is set for the whole strategy"):
        extended.reduce_values(sg.distribute.ReduceOp.SUM, [ones], Options(timeout_seconds=1))
    with pytest.raises(ValueError, match=r"AUTO or RING, got NCCL"):
        extended.reduce_values(
            sg.distribute.ReduceOp.SUM, [ones], Options(implementation=Implementation.NCCL)
        )
    return found


def test_values_and_variables():
    leader, other = run_cluster(use_of_values, 2, devices_per_worker=2)
    assert leader["replicas"] == other["replicas"] == 4
    assert (leader["ids"], other["ids"]) == ([0, 1], [2, 3])
    assert (leader["leads"], other["leads"]) == ((True, True), (False, False))
    assert (leader["resolver"], other["resolver"]) == (0, 1)
    for worker, found in enumerate((leader, other)):
        name = f"/job:worker/replica:0/task:{worker}/device:CPU"
        assert found["devices"] == (f"{name}:0", f"{name}:1")

    np.testing.assert_equal(other["initial_values"], leader["initial_values"])
    np.testing.assert_equal(
        leader["initial_values"],
        {
            "float": [[0, 1, 2]] * 2, "int8": [[0, -1]] * 2, "bool": [[True, True, False]] * 2,
            "half": [[[0.5, 0.5]] * 2] * 2, "nan": [[np.nan, np.inf, 0.0]] * 2, "empty": [[]] * 2,
            "number": [7, 7], "traced": [10, 10], "constant": [[1, 1]] * 2, "read": [5, 5],
            "statistics": [1, 1],
        },
    )  # fmt: skip
    assert leader["sums_of_host_values"] == other["sums_of_host_values"] == [3, 3, 3, 1.5]
    assert leader["sum_in_merge_call"] == other["sum_in_merge_call"] == [10] * 4
    expected = np.concatenate([np.arange(2 * i).reshape(2, -1) for i in range(4)], axis=1)
    mean = pytest.approx(expected.mean())
    assert leader["unequal_shapes"] == other["unequal_shapes"] == (expected.tolist(), mean)
    sums = [[4.0 * i + 6 for i in range(k)] for k in range(1, 5)]
    assert leader["packed"] == other["packed"] == [sums, sums]
    for found in (leader, other):
        sums = found["what_processes_hold_is_not_taken_for_equal"]
        assert sums == [[6, 6], [12, 12], [10, 10], [6]]
        message = found["different_variables"]
        assert "the same variables in the same order" in message
        assert "'of_0' of shape (2,)" in message
        assert "'of_1' of shape (3,)" in message
        outside = found["variables_outside_of_the_scope"]
        assert "got variable 'w:0', created outside of the strategy's scope" in outside["different"]
        assert "with strategy.scope():" in outside["different"]
        assert outside["equal"] == pytest.approx(1 - 0.1 * 4)
        assert outside["quiet"] == []
        [warning] = outside["warned"]
        assert "Variable 'w0:0' was created outside of the strategy's scope" in warning


# --- who takes part -------------------------------------------------------------------------------


def take_part():
    kind = task()[0]
    if kind == "worker":
        resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = sg.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    else:
        strategy = sg.distribute.experimental.MultiWorkerMirroredStrategy(
            communication=Implementation.RING
        )
    with strategy.scope():
        v = sg.Variable({"chief": 1.0, "worker": 2.0, "evaluator": 3.0}[kind], aggregation=SUM)
    strategy.run(lambda: v.assign_add(jnp.float32(10)))
    return (
        strategy.num_replicas_in_sync,
        strategy.extended.worker_devices,
        strategy.extended.should_checkpoint,
        float(v),
    )


def test_a_chief_leads_and_an_evaluator_is_alone():
    chief, worker, evaluator = run_cluster(take_part, 1, chief=True, evaluator=True)
    assert chief == (2, ("/job:chief/replica:0/task:0/device:CPU:0",), True, 21.0)
    assert worker == (2, ("/job:worker/replica:0/task:0/device:CPU:0",), False, 21.0)
    replicas, _, saves, value = evaluator
    assert (replicas, saves, value) == (1, True, 13.0)


def without_private_names():
    """Makes JAX look like one that has changed: as in the meeting point, so in the worker."""
    from stratagem._src.control_plane import membership_server_process
    from stratagem._src.jax_compat import distributed_runtime as jax_runtime

    membership_server_process._MODULE = "membership_server_of_changed_jax"
    jax_runtime._make_client = lambda *_: None
    strategy = make_strategy()
    total = strategy.reduce("SUM", jnp.float32(task()[1] + 1), axis=None)
    return strategy.num_replicas_in_sync, float(total)


def test_a_jax_that_has_changed_is_initialized_in_the_public_way():
    assert run_cluster(without_private_names, 2) == [(2, 3.0)] * 2


def test_parameter_servers_do_not_take_part(monkeypatch):
    cluster = {"worker": ["localhost:1"], "ps": ["localhost:2"]}
    config = {"cluster": cluster, "task": {"type": "ps", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match="Use ParameterServerStrategy"):
        sg.distribute.MultiWorkerMirroredStrategy()


def test_implementations_that_the_platform_does_not_have():
    with pytest.raises(ValueError, match=r"On CPU .* AUTO or RING, got NCCL"):
        sg.distribute.MultiWorkerMirroredStrategy(
            communication_options=Options(implementation=Implementation.NCCL)
        )
    with pytest.raises(ValueError, match="got NCCL"):
        sg.distribute.experimental.MultiWorkerMirroredStrategy(Implementation.NCCL)


# --- input ----------------------------------------------------------------------------------------


def with_policy(dataset, policy):
    options = sg.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def read(strategy, dataset):
    """Returns this worker's rows, step by step."""
    elements = strategy.experimental_distribute_dataset(dataset)
    return [row for element in elements for row in parts(strategy, element)]


def rows(strategy, distributed):
    return [row for e in distributed for part in parts(strategy, e) for row in part]


def policies(strategy, worker, folder):
    names = Dataset.list_files(f"{folder}/*", shuffle=False)
    lines = sg.data.TextLineDataset(names).map(lambda line: np.int32(int(line))).batch(4)
    numbers = Dataset.range(8).batch(4)
    hinted = Dataset.range(8).shard(SHARD_HINT, SHARD_HINT).batch(4)
    return {
        "auto of files": read(strategy, lines),
        "FILE": read(strategy, with_policy(lines, AutoShardPolicy.FILE)),
        "DATA of files": read(strategy, with_policy(lines, AutoShardPolicy.DATA)),
        "auto": read(strategy, numbers),
        "DATA": read(strategy, with_policy(numbers, AutoShardPolicy.DATA)),
        "OFF": read(strategy, with_policy(numbers, AutoShardPolicy.OFF)),
        "HINT": read(strategy, with_policy(hinted, AutoShardPolicy.HINT)),
    }


def shuffled(strategy, worker, folder):
    """Returns the rows of two epochs of each dataset, and what a restored iteration gives."""
    plain = Dataset.range(50).shuffle(50)
    hinted = Dataset.range(50).shuffle(50).shard(SHARD_HINT, SHARD_HINT)
    files = Dataset.list_files(f"{folder}/*").flat_map(sg.data.TextLineDataset)
    files = files.map(lambda line: np.int32(int(line))).shuffle(8)
    kinds = {
        "DATA": with_policy(plain.batch(7), AutoShardPolicy.DATA),
        "HINT": with_policy(hinted.batch(8), AutoShardPolicy.HINT),
        "FILE": with_policy(files.batch(2), AutoShardPolicy.FILE),
    }
    found = {}
    for kind, dataset in kinds.items():
        distributed = strategy.experimental_distribute_dataset(dataset)
        found[kind] = [rows(strategy, distributed) for _ in ("one epoch", "another")]
    iterator = iter(strategy.experimental_distribute_dataset(kinds["DATA"]))
    for _ in range(3):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    rest = [parts(strategy, e) for e in iterator]
    restarted = iter(strategy.experimental_distribute_dataset(kinds["DATA"]))
    restarted.set_state(state)
    found["resumed"] = [parts(strategy, e) for e in restarted] == rest and len(rest) == 5
    return found


def uneven_ends(strategy, worker, folder):
    """Returns what steps see when one worker has more data than the other, or has none at all."""
    contexts, found = [], []

    def dataset_fn(context, counts):
        contexts.append(
            (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync)
        )
        count = counts[context.input_pipeline_id]
        return Dataset.range(100 * worker, 100 * worker + count).batch(2)

    def step(x):
        total = strategy.run(lambda x: jnp.sum(x), args=(x,))
        return strategy.reduce("SUM", total, axis=None), strategy.reduce("SUM", x, axis=0)

    compiled = sg.function(step)
    for counts in ((3, 6), (6, 3), (0, 4)):
        distributed = strategy.distribute_datasets_from_function(
            functools.partial(dataset_fn, counts=counts)
        )
        for call in (step, compiled):
            found.append([[int(t) for t in call(x)] for x in distributed])
    return contexts[0], found


def partial_batches(strategy, worker, folder):
    with strategy.scope():
        total = sg.Variable(0.0, aggregation=SUM)
    distributed = strategy.experimental_distribute_dataset(
        Dataset.from_tensor_slices(np.arange(11.0, dtype=np.float32)).batch(4)
    )

    def step(x):
        strategy.run(lambda x: total.assign_add(jnp.sum(x)), args=(x,))
        return strategy.reduce("MEAN", x, axis=0)

    @sg.function
    def drawing(iterator):
        return step(next(iterator))

    means = [[float(call(x)) for x in distributed] for call in (step, sg.function(step))]
    iterator = iter(distributed)
    means.append([float(drawing(iterator)) for _ in range(3)])
    with pytest.raises(sg.errors.OutOfRangeError):
        drawing(iterator)
    return means, float(total)


def leaving_a_loop(strategy, worker, folder):
    """Leaves loops early; the next iterations of all workers still belong together."""
    endless = strategy.experimental_distribute_dataset(Dataset.range(4).repeat().batch(4))
    taken = []
    for _ in range(3):
        for x in itertools.islice(endless, 2):
            taken.append(parts(strategy, x))
    kept = iter(endless)
    next(kept)
    taken.append(parts(strategy, next(iter(endless))))
    taken.append(parts(strategy, next(kept)))
    return taken


def failing_input(strategy, worker, folder):
    """Returns the error of each worker when the data of only one fails, or it cannot go on empty."""

    def broken(context):
        for i in range(4):
            if context.input_pipeline_id == 1 and i == 2:
                raise KeyError("in the user's function")
            yield np.full(2, i)

    def none_of_unknown_shape(context):
        return (np.ones(2) for _ in range(0 if context.input_pipeline_id else 3))

    errors = []
    for dataset_fn in (broken, none_of_unknown_shape):
        steps = iter(strategy.distribute_datasets_from_function(dataset_fn))
        try:
            for count in itertools.count():  # noqa: B007
                next(steps)
        except Exception as error:
            errors.append((type(error).__name__, str(error), count))
    return errors


def extra_iterators(strategy, worker, folder):
    """Makes iterators on one worker only: those that are drawn from still belong together."""
    first = strategy.experimental_distribute_dataset(Dataset.range(8).batch(4))
    second = strategy.experimental_distribute_dataset(Dataset.range(100, 108).batch(4))
    extra = [iter(first), iter(second), iter(second)] if worker == 1 else []
    counts = len(process_monitor()._values._counts)
    found = []
    for _ in range(3):
        found += [parts(strategy, next(iter(second))), parts(strategy, next(iter(first)))]
    assert len(process_monitor()._values._counts) == counts
    del extra
    return found


def different_datasets(strategy, worker, folder):
    """Returns what the workers are told that distribute different datasets."""
    numbers = np.arange(8, dtype=np.float32 if worker else np.int32)

    def batches(sizes):
        return [np.arange(size) for size in sizes]

    def of_generator(size):
        return Dataset.from_generator(lambda: iter(batches([size] * 2)), np.int64)

    made = (
        lambda: Dataset.from_tensor_slices(numbers).batch(4),
        lambda: Dataset.range(8).batch(4 + 4 * worker),
        lambda: Dataset.range(8).shard(2, worker).batch(4),
        lambda: batches([4, 4 + worker]),
        lambda: of_generator(6 + worker),
    )
    told = []
    for make in made:
        with pytest.raises(sg.errors.ReplicaMismatchError) as error:
            list(strategy.experimental_distribute_dataset(make()))
        told.append(str(error.value))
    return told


def loop_of_a_job_that_is_not_elastic(strategy, worker, folder):
    """Returns the rows of a dataset whose order nobody has fixed."""

    @sg.train.elastic(strategy)
    def read(loop):
        return [parts(strategy, x) for x in loop.batches(Dataset.range(8).shuffle(8).batch(4))]

    return read()


def scalars_of_uneven_length(strategy, worker, folder):
    """Returns elements that are not batches, of which one worker has more."""
    distributed = strategy.distribute_datasets_from_function(lambda _: Dataset.range(2 + worker))
    return [parts(strategy, e) for e in distributed]


def use_of_input(folder):
    strategy = make_strategy()
    worker = task()[1]
    checks = (
        policies,
        shuffled,
        uneven_ends,
        partial_batches,
        leaving_a_loop,
        failing_input,
        extra_iterators,
        different_datasets,
        loop_of_a_job_that_is_not_elastic,
        scalars_of_uneven_length,
    )
    found = {}
    for check in checks:
        found[check.__name__] = check(strategy, worker, folder)
        process_monitor().all_gather_object("checks", check.__name__, f"end of {check.__name__}")
    return found


def test_input(tmp_path):
    for name, rows in (("a", range(4)), ("b", range(4, 8))):
        Path(tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    found = run_cluster(use_of_input, 2, (str(tmp_path),))

    def of_all(check):
        return [worker[check] for worker in found]

    everything = [[0, 1], [2, 3], [4, 5], [6, 7]]
    halves = [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    files = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    for worker, rows in enumerate(of_all("policies")):
        assert rows == {
            "auto of files": files[worker], "FILE": files[worker], "DATA of files": halves[worker],
            "auto": halves[worker], "DATA": halves[worker], "OFF": everything,
            "HINT": [[[0, 2], [4, 6]], [[1, 3], [5, 7]]][worker],
        }  # fmt: skip

    first, second = of_all("shuffled")
    for kind, count in (("DATA", 50), ("HINT", 50), ("FILE", 8)):
        for epoch in (0, 1):
            assert sorted(first[kind][epoch] + second[kind][epoch]) == list(range(count)), kind
    assert first["DATA"][0] != first["DATA"][1]
    assert first["resumed"]
    assert second["resumed"]

    expected = [
        [[1 + 201] * 2, [2 + 205] * 2, [209] * 2],
        [[1 + 201] * 2, [5 + 102] * 2, [9] * 2],
        [[201] * 2, [205] * 2],
    ]
    for worker, (context, steps) in enumerate(of_all("uneven_ends")):
        assert context == (2, worker, 2)
        assert steps == [steps for steps in expected for _ in ("eager", "compiled")]

    for means, total in of_all("partial_batches"):
        assert means == [[1.5, 5.5, 9.0]] * 3
        assert total == 3 * 55

    for worker, taken in enumerate(of_all("leaving_a_loop")):
        assert taken == [[[2 * worker, 2 * worker + 1]]] * 8

    (broken, unknown), (broken_here, unknown_here) = of_all("failing_input")
    assert broken_here == ("KeyError", repr("in the user's function"), 2)
    assert broken[0] == "ReplicaMismatchError"
    assert 'process 1: KeyError("in the user\'s function")' in broken[1]
    assert broken[2] == 2
    assert unknown_here[0] == "InvalidArgumentError"
    assert "Give every worker at least one batch" in unknown_here[1]
    assert unknown[0] == "ReplicaMismatchError"
    assert "Give every worker at least one batch" in unknown[1]

    for worker, taken in enumerate(of_all("extra_iterators")):
        own = [2 * worker, 2 * worker + 1]
        assert taken == [[[100 + n for n in own]], [own]] * 3

    for types, size, shards, listed, generated in of_all("different_datasets"):
        assert "the element types differs: process 0 has ['int32']" in types
        assert "process 1 has ['float32']" in types
        assert "the batch size differs: process 0 has 4; process 1 has 8" in size
        assert "Shard(num_shards=2, index=1)" in shards
        for told, rows in ((listed, 4), (generated, 6)):
            assert f"process 0 has a global batch of rows: {rows}; process 1 has" in told

    looped = of_all("loop_of_a_job_that_is_not_elastic")
    assert sorted(np.ravel(looped).tolist()) == list(range(8))

    assert of_all("scalars_of_uneven_length") == [[[0], [1]]] * 2
