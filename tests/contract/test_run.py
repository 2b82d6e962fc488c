import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replicas import components, local_ids, one_process

import stratagem as sg

pytestmark = pytest.mark.about("calls")

Pair = collections.namedtuple("Pair", "first second")


def replica_id():
    return sg.distribute.get_replica_context().replica_id_in_sync_group


def numbered(strategy, scale=1.0):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: scale * (ctx.replica_id_in_sync_group + 1)
    )


@pytest.mark.layout
def test_every_replica_runs_with_its_own_id(strategy, execute, local):
    ids = local(execute(lambda: strategy.run(replica_id)))
    assert [int(i) for i in ids] == list(range(strategy.num_replicas_in_sync))
    assert all(i.dtype == jnp.int32 for i in ids)


def test_arguments_of_every_kind_reach_the_replicas(strategy, execute, local):
    per_replica = numbered(strategy)
    captured = jnp.arange(3.0)

    def step(x, tree, number, array, *, flag):
        assert flag == "yes"
        assert number == 3
        return {"sum": x + tree["a"].second.sum() + number + array.sum() + captured.sum()}

    def call(x):
        tree = {"a": Pair(None, np.ones(2, np.float32))}
        return strategy.run(step, args=(x, tree, 3, jnp.ones(4)), kwargs={"flag": "yes"})

    result = execute(call, per_replica)
    expected = [i + 1 + 2 + 3 + 4 + 3 for i in range(strategy.num_replicas_in_sync)]
    assert [float(v) for v in local(result["sum"])] == expected


def test_results_keep_their_structure(strategy, execute, local):
    def step():
        return Pair({"x": [jnp.ones(2), None]}, (jnp.zeros(()),))

    result = execute(lambda: strategy.run(step))
    assert isinstance(result, Pair)
    assert result.first["x"][1] is None
    assert [v.shape for v in local(result.first["x"][0])] == [(2,)] * len(
        local(result.first["x"][0])
    )
    assert [v.shape for v in local(result.second[0])] == [()] * strategy.num_replicas_in_sync


def test_constants_as_results(strategy, execute, local):
    """JAX makes a scalar constant a literal of the trace, whose value is a Python number."""
    constants = {
        "float": lambda: jnp.asarray(1e-3),
        "bool": lambda: jnp.asarray(True),
        "int": lambda: jnp.array(3),
        "full": lambda: jnp.full((), 2.0),
        "typed": lambda: jnp.asarray(2, jnp.bfloat16),
    }
    with strategy.scope():
        v = sg.Variable(0.0, aggregation=sg.VariableAggregation.ONLY_FIRST_REPLICA)

    def step():
        context = sg.distribute.get_replica_context()
        v.assign(constants["full"]())
        return {
            "vector": jnp.zeros(3),
            "own": {name: make() for name, make in constants.items()},
            "reduced": context.all_reduce("MEAN", constants["float"]()),
            "merged": context.merge_call(lambda strategy: constants["int"]()),
            "branch": jax.lax.cond(True, constants["int"], constants["int"]),
        }

    result = execute(lambda: strategy.run(step))
    for name, make in constants.items():
        assert {(v.dtype, v.shape, v.item()) for v in local(result["own"][name])} == {
            (make().dtype, (), make().item())
        }
    assert [float(x) for x in local(result["reduced"])] == pytest.approx(
        [1e-3] * strategy.num_replicas_in_sync
    )
    assert {int(x) for x in [*local(result["merged"]), *local(result["branch"])]} == {3}
    assert float(v) == 2


def test_one_replica_is_not_wrapped(execute):
    strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    result = execute(lambda: strategy.run(lambda x: x * 2, args=(jnp.ones(2),)))
    assert isinstance(result, jax.Array)


def test_arrays_of_several_replicas_are_per_replica(many, execute):
    result = execute(lambda: many.run(lambda: jnp.ones(2)))
    assert isinstance(result, sg.distribute.PerReplica)
    assert isinstance(result, sg.distribute.DistributedValues)
    assert len(components(many, result)) == many.num_replicas_in_sync


def test_objects_that_are_the_same_in_all_replicas_are_not_wrapped(strategy, execute):
    def step():
        return sg.distribute.in_cross_replica_context(), "text", 10**6, None

    assert execute(lambda: strategy.run(step)) == (False, "text", 10**6, None)


@pytest.mark.layout
def test_objects_that_differ_come_back_one_for_each_replica(many):
    contexts = many.run(sg.distribute.get_replica_context)
    own = many.experimental_local_results(contexts)
    assert isinstance(contexts, sg.distribute.PerReplica) or len(own) == 1
    assert [int(c.replica_id_in_sync_group) for c in own] == list(local_ids(many))
    numbers = many.run(lambda: int(replica_id()))
    assert components(many, numbers) == list(range(many.num_replicas_in_sync))


def test_contexts(strategy, execute):
    default = strategy is sg.distribute.get_strategy()

    def replica():
        context = sg.distribute.get_replica_context()
        assert context.strategy is strategy
        assert sg.distribute.get_strategy() is strategy
        assert not sg.distribute.in_cross_replica_context()
        assert context.num_replicas_in_sync == strategy.num_replicas_in_sync
        assert set(context.devices) <= set(strategy.extended.worker_devices)

    def call():
        with strategy.scope():
            assert sg.distribute.get_strategy() is strategy
            assert sg.distribute.has_strategy() is not default
            assert sg.distribute.in_cross_replica_context() is not default
            with strategy.scope():
                strategy.run(replica)

    execute(call)


def test_results_of_one_run_are_arguments_of_the_next(strategy, execute, local):
    def call(x):
        once = strategy.run(lambda x: {"y": x + 1}, args=(x,))
        return strategy.run(lambda d: d["y"] * 10, args=(once,))

    result = execute(call, numbered(strategy))
    assert [float(v) for v in local(result)] == [
        10 * (i + 2) for i in range(strategy.num_replicas_in_sync)
    ]


@pytest.mark.not_on(
    "mirrored2_laid_out", reason="a step without layouts is traced again without them"
)
def test_run_of_a_function_is_compiled_once(strategy, local):
    traces = []

    @sg.function
    def step(x):
        traces.append(1)
        return x * 2 + replica_id()

    for _ in range(3):
        result = strategy.run(step, args=(jnp.float32(1),))
    assert [float(v) for v in local(result)] == [
        2 + i for i in range(strategy.num_replicas_in_sync)
    ]
    assert len(traces) == 1
    assert step.experimental_get_tracing_count() == 1


def test_functional_training_without_variables(strategy, execute, local):
    """A pytree of parameters goes through run; gradients are all-reduced; nothing of ours is needed."""
    import optax

    optimizer = optax.adam(0.1)
    parameters = {"w": jnp.ones((3,)), "b": jnp.zeros(())}

    def replica_step(parameters, state, x, y):
        def loss_fn(p):
            return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(parameters)
        gradients = sg.distribute.get_replica_context().all_reduce("MEAN", gradients)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    n = strategy.num_replicas_in_sync
    random = np.random.default_rng(0)
    x = random.normal(size=(4 * n, 3)).astype(np.float32)
    y = (x @ [1.0, -2.0, 3.0]).astype(np.float32)
    split = [
        strategy.experimental_distribute_values_from_function(
            lambda ctx, a=a: np.split(a, n)[ctx.replica_id_in_sync_group]
        )
        for a in (x, y)
    ]

    def step(parameters, state, x, y):
        return strategy.run(replica_step, args=(parameters, state, x, y))

    state = optimizer.init(parameters)
    current, current_state = parameters, state
    for _ in range(3):
        current, current_state, _ = execute(step, current, current_state, *split)

    def whole_loss(p):
        return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)

    expected, expected_state = parameters, state
    for _ in range(3):
        updates, expected_state = optimizer.update(jax.grad(whole_loss)(expected), expected_state)
        expected = optax.apply_updates(expected, updates)
    for copy in local(current["w"]):
        np.testing.assert_allclose(copy, expected["w"], rtol=1e-4)


def test_flax_module_as_it_is(strategy, execute, local):
    import flax.linen as nn

    model = nn.Dense(2)
    x = jnp.ones((4, 3))
    parameters = model.init(jax.random.key(0), x)
    result = execute(
        lambda p, x: strategy.run(lambda p, x: model.apply(p, x), args=(p, x)), parameters, x
    )
    for copy in local(result):
        np.testing.assert_allclose(copy, model.apply(parameters, x), rtol=1e-5)


def test_replicas_with_different_shapes(many, execute_ragged):
    """A last partial batch: that one call runs eagerly, also in a function."""
    n = many.num_replicas_in_sync
    ragged = many.experimental_distribute_values_from_function(
        lambda ctx: np.arange(ctx.replica_id_in_sync_group, dtype=np.float32)
    )
    result = execute_ragged(lambda x: many.run(lambda x: x * 2, args=(x,)), ragged)
    assert [v.shape for v in components(many, result)] == [(i,) for i in range(n)]
    total = execute_ragged(lambda x: many.reduce("SUM", x, axis=0), ragged)
    assert float(total) == sum(sum(range(i)) for i in range(n))


@one_process("workers do not know the shapes of each other")
def test_run_options_can_forbid_different_shapes(many):
    options = sg.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
    ragged = many.experimental_distribute_values_from_function(
        lambda ctx: np.zeros(ctx.replica_id_in_sync_group)
    )
    with pytest.raises(ValueError, match="equal shapes"):
        many.run(lambda x: x, args=(ragged,), options=options)
    with pytest.raises(ValueError, match="not supported"):
        sg.distribute.RunOptions(experimental_bucketizing_dynamic_shape=True)


def test_old_name_of_run(strategy, execute, local):
    result = execute(lambda: strategy.experimental_run_v2(replica_id))
    assert len(local(result)) == strategy.num_replicas_in_sync


def test_run_inside_the_users_own_jit(many):
    @jax.jit
    def step(x):
        doubled = many.run(
            lambda x: sg.distribute.get_replica_context().all_reduce("SUM", x), args=(x,)
        )
        return many.reduce("MEAN", doubled, axis=None)

    assert float(step(jnp.float32(3))) == 3 * many.num_replicas_in_sync


def test_settings_of_the_caller_hold_in_replica_threads(many):
    with jax.enable_x64(True):
        result = many.run(lambda: jnp.float64(1) / 3)
    assert result.values[0].dtype == jnp.float64


@pytest.mark.layout
def test_replicas_take_turns_in_a_definite_order(many):
    seen = []

    def step():
        seen.append(int(replica_id()))
        sg.distribute.get_replica_context().all_reduce("SUM", 1.0)
        seen.append(int(replica_id()) + 100)

    many.run(step)
    ids = local_ids(many)
    assert seen == [*ids, *(i + 100 for i in ids)]


def test_older_names(strategy):
    size, local_size = strategy.num_replicas_in_sync, strategy.replica_group.local_size
    assert strategy.unwrap(5) == strategy.experimental_local_results(5) == (5,)
    numbers = numbered(strategy)
    assert len(strategy.unwrap(numbers)) == local_size
    assert strategy.group(7) == 7
    assert (strategy.group(numbers) is None) == (local_size > 1)
    assert strategy.experimental_run(lambda: "done") == "done"
    dataset = sg.data.Dataset.range(4 * size).batch(2 * size)
    batch = strategy.experimental_run(lambda x: x, strategy.make_dataset_iterator(dataset))
    assert strategy.reduce("SUM", batch, axis=0) == sum(range(2 * size))
    iterator = strategy.make_input_fn_iterator(
        lambda context: sg.data.Dataset.range(2 * size).batch(2)
    )
    assert [x.shape for x in strategy.unwrap(next(iterator))] == [(2,)] * local_size
    with pytest.raises(ValueError, match="once for each worker"):
        strategy.make_input_fn_iterator(
            lambda context: None, sg.distribute.InputReplicationMode.PER_REPLICA
        )
    assert strategy.configure() is None
    assert strategy.update_config_proto("as it is") == "as it is"
    with pytest.raises(NotImplementedError, match="no sessions"):
        strategy.configure(task_type="worker")
