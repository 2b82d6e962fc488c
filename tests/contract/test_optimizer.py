"""The same optimizer under several strategies."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from replicas import IN_WORKERS

import stratagem as sg

pytestmark = pytest.mark.about("variables")


def by_hand(transformation, steps, start, num_replicas):
    """Returns what optax alone makes of the same gradients, summed over the replicas."""
    scale = sum(range(1, num_replicas + 1))

    @jax.jit
    def step(values, state):
        gradients = [2 * scale * values[0], jnp.zeros_like(values[1]).at[1].set(3.0 * scale)]
        updates, state = transformation.update(gradients, state, values)
        return optax.apply_updates(values, updates), state

    values, state = start, transformation.init(start)
    for _ in range(steps):
        values, state = step(values, state)
    return values


def take_steps(strategy, execute, transformation):
    start = [jnp.array([1.0, 2.0]), jnp.ones((3, 2))]
    with strategy.scope():
        variables = [sg.Variable(value) for value in start]
    optimizer = sg.train.Optimizer(transformation)

    def step():
        context = sg.distribute.get_replica_context()
        scale = context.replica_id_in_sync_group + 1.0
        _, gradient = sg.value_and_grad(lambda: scale * jnp.sum(variables[0] ** 2), variables[0])()
        rows = sg.IndexedSlices(jnp.full((1, 2), 3.0) * scale, jnp.array([1]))
        optimizer.apply_gradients(zip([gradient, rows], variables, strict=True))

    for _ in range(3):
        execute(lambda: strategy.run(step))
    expected = by_hand(transformation, 3, start, strategy.num_replicas_in_sync)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=2e-5)
    return optimizer


@pytest.mark.parametrize(
    "strategy",
    ["workers"] if IN_WORKERS else ["default", "mirrored2", "central2"],
    indirect=True,
)
def test_steps_as_optax_takes_them(strategy, execute):
    transformation = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1))
    optimizer = take_steps(strategy, execute, transformation)
    # Updates so far, and the state of Adam: a count, and two moments of each variable.
    assert len(optimizer.variables) == 6
    assert int(optimizer.variables[0]) == int(optimizer.iterations) == 3


@pytest.mark.skipif(IN_WORKERS, reason="workers have no parameter servers")
@pytest.mark.parametrize("strategy", ["parameter_server2"], indirect=True)
def test_state_stays_on_the_servers(strategy, execute):
    optimizer = take_steps(strategy, execute, optax.adam(0.1))
    assert optimizer.variables == []
    with pytest.raises(sg.errors.UnsupportedError, match="in your own variable"):
        _ = optimizer.iterations


def test_other_variables_are_refused():
    v, w = sg.Variable(1.0), sg.Variable(2.0)
    optimizer = sg.train.Optimizer(optax.sgd(0.1))
    optimizer.apply_gradients([(1.0, v), (None, w)])
    assert float(v) == pytest.approx(0.9)
    with pytest.raises(sg.errors.VariableError, match="always get the same variables"):
        optimizer.apply_gradients([(1.0, w)])
    with pytest.raises(ValueError, match="got 'adam'"):
        sg.train.Optimizer("adam")


def test_only_gradients_that_are_none_are_refused(strategy, execute):
    with strategy.scope():
        v = sg.Variable(1.0, name="v")
    optimizer = sg.train.Optimizer(optax.sgd(1.0))

    def step():
        with sg.GradientTape() as tape:
            loss = jnp.ones(()) * 2
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    with pytest.raises(ValueError, match=r"got None for all of them: 'v:0'"):
        execute(lambda: strategy.run(step))


def test_two_gradients_of_one_variable_are_refused(strategy, execute):
    with strategy.scope():
        v, w = sg.Variable(jnp.zeros(2), name="v"), sg.Variable(jnp.zeros(2), name="w")
    optimizer = sg.train.Optimizer(optax.sgd(1.0))

    def step():
        one = jnp.ones(2)
        optimizer.apply_gradients([(one, v), (one, w), (10 * one, w), (None, v)])

    for fn in (step, lambda: strategy.run(step)):
        with pytest.raises(sg.errors.VariableError, match="got 2 for 'w:0'"):
            execute(fn)
    assert v.numpy().tolist() == w.numpy().tolist() == [0, 0]
    assert optimizer.variables == []


def noisy():
    return optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.sgd(0.1))


@pytest.mark.parametrize(
    "gradient",
    [
        np.ones(1, np.float32),
        np.ones(4, np.float32),
        np.ones((2, 3), np.float32),
        2.0,
        sg.IndexedSlices(np.ones((2, 1), np.float32), np.array([0, 1])),
    ],
    ids=["one", "four", "rows", "number", "slices"],
)
def test_a_gradient_of_another_shape_is_refused_before_anything_changes(
    strategy, execute, gradient
):
    with strategy.scope():
        other, kernel = sg.Variable([1.0, 2.0]), sg.Variable(np.ones(3, np.float32), name="kernel")
    optimizer = sg.train.Optimizer(optax.sgd(0.1))

    def step():
        optimizer.apply_gradients([(jnp.ones(2), other), (gradient, kernel)])

    with pytest.raises(ValueError, match=r"'kernel(:0)?' of shape \(3,\)"):
        execute(lambda: strategy.run(step))
    assert other.numpy().tolist() == [1, 2]
    assert kernel.numpy().tolist() == [1, 1, 1]


@pytest.mark.not_on(
    "parameter_server2",
    reason="its functions run on workers, which have variables of servers alone",
)
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=["", "late"])
def test_a_variable_of_no_scope_is_updated_once_by_the_sum(strategy, prepare, options):
    outside = sg.Variable(np.zeros(3, np.float32))
    with strategy.scope():
        inside = sg.Variable(np.zeros(3, np.float32))
    optimizer = sg.train.Optimizer(optax.sgd, learning_rate=0.5, **options)
    variables = [outside, inside]

    def step():
        gradients = [jnp.ones(3) * (1 + variable.read_value()) for variable in variables]
        optimizer.apply(gradients, variables)

    run = prepare(lambda: strategy.run(step))
    expected = np.zeros(3)
    for count in range(1, 5):
        run()
        if count % options.get("gradient_accumulation_steps", 1) == 0:
            expected = expected - 0.5 * strategy.num_replicas_in_sync * (1 + expected)
        np.testing.assert_allclose(outside.numpy(), expected, rtol=1e-5)
        np.testing.assert_allclose(inside.numpy(), expected, rtol=1e-5)


def test_transformations_with_random_keys(strategy, tmp_path):
    with strategy.scope():
        v = sg.Variable(np.ones(3, np.float32))
        optimizer = sg.train.Optimizer(noisy())
    scale = 1.0 / strategy.num_replicas_in_sync

    @sg.function
    def step():
        strategy.run(lambda: optimizer.apply_gradients([(jnp.full(3, scale), v)]))

    def steps(count):
        for _ in range(count):
            step()
        return v.numpy()

    transformation, params = noisy(), [jnp.ones(3)]
    state = transformation.init(params)
    for _ in range(3):
        updates, state = transformation.update([jnp.ones(3)], state, params)
        params = optax.apply_updates(params, updates)
    checkpoint = sg.train.Checkpoint(v=v, optimizer=optimizer)
    first = steps(2)
    path = checkpoint.save(str(tmp_path / "noisy"))
    last = steps(1)
    if not isinstance(strategy, sg.distribute.ParameterServerStrategy):  # each shard draws there
        np.testing.assert_allclose(last, params[0], rtol=1e-5)
    checkpoint.restore(path)
    np.testing.assert_array_equal(v.numpy(), first)
    np.testing.assert_allclose(steps(1), last, rtol=1e-6)


LOCAL = ["workers"] if IN_WORKERS else ["default", "mirrored2", "central2"]


@pytest.mark.parametrize("strategy", LOCAL, indirect=True)
def test_everything_together(strategy, prepare, tmp_path):
    """Schedule, clipping, accumulation and loss scaling, saved in the middle and continued exactly."""
    with strategy.scope():
        model = {"kernel": sg.Variable([1.0, 2.0], name="kernel"), "bias": [sg.Variable(0.5)]}
        sums = sg.Variable(jnp.zeros(()), aggregation=sg.VariableAggregation.SUM)
    n = strategy.num_replicas_in_sync

    def begin():
        optimizer = sg.train.Optimizer(
            optax.sgd,
            learning_rate=optax.exponential_decay(0.5, 1, 0.5),
            global_clipnorm=1.0,
            gradient_accumulation_steps=2,
            loss_scale="dynamic",
        )
        optimizer.build(model)

        def step(factor):
            def loss():
                part = factor * (jnp.sum(model["kernel"] * 3.0) + 4.0 * model["bias"][0]) / n
                return optimizer.scale_loss(part), {"loss": part}

            (_, aux), gradients = sg.value_and_grad(loss, model, has_aux=True)()
            sums.assign_add(aux["loss"])
            optimizer.apply(gradients, model)

        return optimizer, prepare(lambda factor: strategy.run(step, (factor,)))

    def numbers():
        return [*model["kernel"].numpy(), float(model["bias"][0])]

    optimizer, step = begin()
    slope = np.array([3.0, 3.0, 4.0])
    for factor in (1.0, 3.0):  # on average 2, and the gradient's norm is clipped to 1
        step(jnp.float32(factor))
    by_hand = np.array([1.0, 2.0, 0.5]) - 0.5 * slope / np.sqrt(34)
    np.testing.assert_allclose(numbers(), by_hand, rtol=1e-5)
    assert int(optimizer.iterations) == 1
    assert float(optimizer.learning_rate) == 0.25
    for factor in (0.01, np.inf):  # of which the second is left out
        step(jnp.float32(factor))
    np.testing.assert_allclose(numbers(), by_hand, rtol=1e-5)
    held = {v.name: v for v in optimizer.variables}
    assert float(held["optimizer/loss_scale:0"]) == 2.0**14
    assert "optimizer/accumulated/kernel:0" in held
    path = sg.train.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "kit")
    step(jnp.float32(0.01))
    after = numbers()
    np.testing.assert_allclose(after, by_hand - 0.25 * 0.01 * slope, rtol=1e-5)
    for again, step_again in ((optimizer, step), begin()):
        sg.train.Checkpoint(model=model, optimizer=again).restore(path)
        assert int(again.iterations) == 1
        step_again(jnp.float32(0.01))
        np.testing.assert_array_equal(numbers(), after)
        assert int(again.iterations) == 2


@pytest.mark.layout
@pytest.mark.parametrize("strategy", LOCAL, indirect=True)
def test_gradients_of_several_calls_are_averaged(strategy, prepare, tmp_path):
    """Each replica adds up its own, dense or rows; also in a checkpoint."""
    with strategy.scope():
        table, bias = sg.Variable(jnp.zeros((4, 2))), sg.Variable(1.0)
    n = strategy.num_replicas_in_sync

    def begin():
        optimizer = sg.train.Optimizer(optax.sgd(1.0), gradient_accumulation_steps=3)

        def step(factor):
            replica = sg.distribute.get_replica_context().replica_id_in_sync_group
            mine = factor * (1.0 + replica)
            rows = sg.IndexedSlices(jnp.full((2, 2), mine), jnp.array([1, 1]))
            optimizer.apply_gradients([(rows, table), (mine, bias)])

        return optimizer, prepare(lambda factor: strategy.run(step, (factor,)))

    optimizer, step = begin()
    total = n * (n + 1) / 2  # of what the replicas bring, for a factor of one
    for factor in (1.0, 2.0):
        step(jnp.float32(factor))
    assert float(bias) == 1.0
    assert int(optimizer.iterations) == 0
    held = {v.name: v for v in optimizer.variables}
    accumulated = next(
        v for name, v in held.items() if "accumulated/Variable" in name and not v.shape
    )
    assert float(accumulated) == pytest.approx(3 * total)
    path = sg.train.Checkpoint(table=table, bias=bias, optimizer=optimizer).save(tmp_path / "x")
    step(jnp.float32(6.0))
    expected = np.zeros((4, 2))
    expected[1] = -2 * 3 * total
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
    assert float(bias) == pytest.approx(1 - 3 * total)
    assert int(optimizer.iterations) == 1
    assert float(accumulated) == 0

    for again, step_again in ((optimizer, step), begin()):
        sg.train.Checkpoint(table=table, bias=bias, optimizer=again).restore(path)
        assert float(bias) == 1.0
        step_again(jnp.float32(6.0))
        np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
        assert float(bias) == pytest.approx(1 - 3 * total)

    # Outside of replicas a gradient is that of all.
    for _ in range(3):
        optimizer.apply_gradients([(jnp.zeros((4, 2)), table), (1.0, bias)])
    assert float(bias) == pytest.approx(-3 * total)


@pytest.mark.parametrize("strategy", LOCAL, indirect=True)
def test_gradients_that_the_replicas_have_combined_are_used_as_they_are(strategy, prepare):
    with strategy.scope():
        w = sg.Variable(1.0)
    for steps in (None, 2):
        w.assign(1.0)
        optimizer = sg.train.Optimizer(optax.sgd(1.0), gradient_accumulation_steps=steps)

        def step(optimizer=optimizer):
            context = sg.distribute.get_replica_context()
            mean = context.all_reduce(sg.distribute.ReduceOp.MEAN, jnp.float32(0.25))
            optimizer.apply_gradients(
                zip([mean], [w], strict=True), name="step", experimental_aggregate_gradients=False
            )

        run = prepare(lambda step=step: strategy.run(step))
        for _ in range(steps or 1):
            run()
        assert float(w) == 0.75


@pytest.mark.parametrize("strategy", LOCAL, indirect=True)
def test_learning_rate_is_assigned_and_saved(strategy, prepare, tmp_path):
    with strategy.scope():
        w = sg.Variable(1.0)
    scale = jnp.float32(1 / strategy.num_replicas_in_sync)

    def begin():
        optimizer = sg.train.Optimizer(optax.sgd, learning_rate=0.5)
        return optimizer, prepare(lambda: strategy.run(lambda: optimizer.apply([scale], [w])))

    optimizer, step = begin()
    optimizer.learning_rate = 0.25
    step()
    assert float(w) == pytest.approx(0.75)
    optimizer.learning_rate = 0.125
    step()
    assert float(w) == pytest.approx(0.625)
    path = sg.train.Checkpoint(w=w, optimizer=optimizer).save(tmp_path / "rate")
    other, step = begin()
    sg.train.Checkpoint(w=w, optimizer=other).restore(path)
    assert float(other.learning_rate) == 0.125
    step()
    assert float(w) == pytest.approx(0.5)
    assert float(other.learning_rate) == 0.125


@pytest.mark.skipif(IN_WORKERS, reason="workers have no parameter servers")
@pytest.mark.parametrize("strategy", ["parameter_server2"], indirect=True)
def test_options_on_parameter_servers(strategy, execute):
    with strategy.scope():
        table, bias = sg.Variable(jnp.zeros((4, 1))), sg.Variable(0.0)
    optimizer = sg.train.Optimizer(optax.sgd, learning_rate=0.5, global_clipnorm=1.0)
    optimizer.learning_rate = 1.0
    optimizer.build([table, bias])

    def step():
        # Both replicas' and both of a row: 12 in all, and 16 for the bias.
        rows = sg.IndexedSlices(jnp.full((2, 1), 3.0), jnp.array([2, 2]))
        optimizer.apply([rows, jnp.float32(8)], [table, bias])

    execute(lambda: strategy.run(step))
    np.testing.assert_allclose(table.numpy()[:, 0], [0, 0, -0.6, 0], rtol=1e-5)
    assert float(bias) == pytest.approx(-0.8)
    with pytest.raises(sg.errors.UnsupportedError, match="schedule"):
        optimizer.learning_rate = 0.1
    for options in ({"gradient_accumulation_steps": 2}, {"loss_scale": "dynamic"}):
        with pytest.raises(sg.errors.UnsupportedError, match="on parameter servers"):
            sg.train.Optimizer(optax.sgd(1.0), **options).apply([1.0], [bias])


MEAN_OPTIONS = {
    "plain": {},
    "clipped": {"global_clipnorm": 0.5},
    "accumulated": {"gradient_accumulation_steps": 2},
    "scaled": {"loss_scale": 8.0, "gradient_accumulation_steps": 2},
    "sharded_state": {"shard_state": True},
}


@pytest.mark.parametrize("options", MEAN_OPTIONS.values(), ids=MEAN_OPTIONS)
@pytest.mark.parametrize("strategy", ["workers" if IN_WORKERS else "mirrored2"], indirect=True)
def test_a_mean_over_the_replicas_is_the_sum_of_shares(strategy, execute, options):
    """Two optimizers see the same gradients: one their mean, one the sum of each divided by N."""
    start = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    replicas = strategy.num_replicas_in_sync
    results = []
    for reduction, share in (("mean", 1), ("sum", replicas)):
        with strategy.scope():
            v, rows = sg.Variable(start), sg.Variable(start)
        transformation = optax.sgd(0.1, momentum=0.9)
        optimizer = sg.train.Optimizer(transformation, gradient_reduction=reduction, **options)
        optimizer.build([v, rows])

        def step(v=v, rows=rows, optimizer=optimizer, share=share):
            replica = sg.distribute.get_replica_context().replica_id_in_sync_group
            scale = (replica + 1.0) / share
            _, gradient = sg.value_and_grad(
                lambda: optimizer.scale_loss(scale * jnp.sum(v.value() ** 2)), v
            )()
            factor = optimizer.scale_loss(scale)
            sparse = sg.IndexedSlices(jnp.full((1, 8), 3.0) * factor, jnp.array([1]))
            optimizer.apply_gradients([(gradient, v), (sparse, rows)])

        for _ in range(4):
            execute(lambda step=step: strategy.run(step))
        results.append((v.numpy(), rows.numpy()))
    for mean, total in zip(*results, strict=True):
        np.testing.assert_allclose(mean, total, rtol=1e-5)
        assert not np.array_equal(mean, start)


@pytest.mark.skipif(IN_WORKERS, reason="one process is enough")
def test_a_mean_of_fully_sharded_gradients():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    start = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    with strategy.scope(), sg.distribute.experimental.FullySharded(min_size=2):
        v = sg.Variable(start)
    optimizer = sg.train.Optimizer(optax.sgd(0.1), gradient_reduction="mean")

    def step():
        scale = sg.distribute.get_replica_context().replica_id_in_sync_group + 1.0
        _, gradient = sg.value_and_grad(lambda: scale * jnp.sum(v.value() ** 2), v)()
        optimizer.apply(gradient, v)

    sg.function(lambda: strategy.run(step))()
    np.testing.assert_allclose(v.numpy(), start - 0.1 * 3.0 * start, rtol=1e-6)
