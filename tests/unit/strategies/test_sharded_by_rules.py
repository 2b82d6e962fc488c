"""Training with variables that are sharded by rules gives the numbers of unsharded training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg

ex = sg.distribute.experimental

RULES = ex.ShardingRules(
    {"kernel": ("fsdp", "tensor"), "up/bias": ("tensor",)},
    axes={"fsdp": 2, "tensor": 2},
    activations={"hidden": ("data", "tensor")},
)


def mirrored(num_devices, rules=None):
    return sg.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_devices)], sharding_rules=rules
    )


def parameters():
    random = np.random.default_rng(0)
    return {
        "up": {
            "kernel": 0.1 * random.normal(size=(16, 32)).astype(np.float32),
            "bias": np.zeros(32, np.float32),
        },
        "down": {"kernel": 0.1 * random.normal(size=(32, 8)).astype(np.float32)},
        "scale": np.float32(1),
    }


def leaves(tree):
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, sg.Variable))


def shard_shape(variable):
    return variable.snapshot().addressable_shards[0].data.shape


class Training:
    """A small network and its optimizer under a strategy."""

    def __init__(self, strategy, optimizer=None, *, rows=8, compiled=True):
        self.strategy = strategy
        with strategy.scope():
            self.params = ex.named_variables(parameters())
        self.optimizer = optimizer or sg.train.Optimizer(
            optax.adam(0.01), global_clipnorm=0.5, gradient_reduction="mean"
        )
        self.layouts = []
        self.rows = rows
        self.step = sg.function(self._step) if compiled else self._step

    def _step(self, x, y):
        return self.strategy.reduce("MEAN", self.strategy.run(self._replica, (x, y)), axis=None)

    def _replica(self, x, y):
        p = self.params

        def loss():
            hidden = jnp.tanh(x @ p["up"]["kernel"] + p["up"]["bias"])
            hidden = ex.constrain(hidden, "hidden")
            if isinstance(hidden, jax.core.Tracer):
                jax.debug.inspect_array_sharding(hidden, callback=self.layouts.append)
            return jnp.mean((p["scale"] * (hidden @ p["down"]["kernel"]) - y) ** 2)

        value, gradients = sg.value_and_grad(loss, p)()
        self.optimizer.apply(gradients, p)
        return value

    def batch(self, number):
        random = np.random.default_rng(number)
        count = self.strategy.num_replicas_in_sync
        x = random.normal(size=(2 * self.rows, 16)).astype(np.float32)
        y = random.normal(size=(2 * self.rows, 8)).astype(np.float32)
        return [
            self.strategy.experimental_distribute_values_from_function(
                lambda c, rows=rows: np.split(rows, count)[c.replica_id_in_sync_group]
            )
            for rows in (x, y)
        ]

    def run(self, steps=2):
        losses = [float(self.step(*self.batch(i))) for i in range(steps)]
        return losses, [v.numpy() for v in leaves(self.params)]


@pytest.fixture(scope="module")
def unsharded():
    return Training(mirrored(2)).run()


def assert_equal_runs(run, expected):
    np.testing.assert_allclose(run[0], expected[0], rtol=1e-5)
    for got, wanted in zip(run[1], expected[1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_training_equals_unsharded_training_and_stays_sharded(unsharded):
    training = Training(mirrored(8, RULES))
    assert training.strategy.num_replicas_in_sync == 2
    assert_equal_runs(training.run(), unsharded)
    params = training.params
    wanted = {"up/kernel": (8, 16), "up/bias": (16,), "down/kernel": (16, 4), "scale": ()}
    assert {v.name.removesuffix(":0"): shard_shape(v) for v in leaves(params)} == wanted
    state = {v.name.split("/", 1)[1]: shard_shape(v) for v in training.optimizer.variables}
    for name, shape in wanted.items():
        assert state[f"mu/{name}:0"] == state[f"nu/{name}:0"] == shape
    # The batch over fsdp, and what the layer computes over tensor.
    assert {of.shard_shape((8, 32)) for of in training.layouts} == {(4, 16)}


def test_one_replica_equals_unsharded_training(unsharded):
    training = Training(mirrored(4, RULES))
    assert training.strategy.num_replicas_in_sync == 1
    assert_equal_runs(training.run(), unsharded)
    assert shard_shape(training.params["up"]["kernel"]) == (8, 16)


def test_eager_training_equals_unsharded_training(unsharded):
    training = Training(mirrored(8, RULES), compiled=False)
    assert_equal_runs(training.run(), unsharded)
    assert shard_shape(training.params["up"]["kernel"]) == (8, 16)


def test_batches_that_do_not_divide_are_not_sharded(unsharded):
    sharded, other = (Training(s, rows=3) for s in (mirrored(8, RULES), mirrored(2)))
    assert_equal_runs(sharded.run(1), other.run(1))
    assert {of.shard_shape((3, 32)) for of in sharded.layouts} == {(3, 16)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.lamb(0.01),
        lambda: optax.adafactor(0.01),
        lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9)),
        lambda: optax.contrib.muon(0.01),
    ],
)
def test_optimizers_that_need_whole_arrays(make):
    runs = [
        Training(strategy, sg.train.Optimizer(make(), gradient_accumulation_steps=2)).run(4)
        for strategy in (mirrored(8, RULES), mirrored(2))
    ]
    assert_equal_runs(*runs)


def test_reads_and_updates_outside_of_replicas():
    with mirrored(8, RULES).scope():
        v = sg.Variable(np.arange(32, dtype=np.float32).reshape(8, 4), name="kernel")
    np.testing.assert_array_equal(v.read_value() * 2, np.arange(32).reshape(8, 4) * 2)
    assert v.read_value().addressable_shards[0].data.shape == (4, 2)
    v.assign_add(np.ones((8, 4), np.float32))
    v.scatter_update(sg.IndexedSlices(np.zeros((1, 4), np.float32), np.array([7])))

    @sg.function
    def double():
        v.assign(v * 2)
        return v.read_value()

    expected = 2 * np.concatenate([np.arange(28).reshape(7, 4) + 1, np.zeros((1, 4))])
    np.testing.assert_array_equal(double(), expected)
    np.testing.assert_array_equal(v.numpy(), expected)
    assert shard_shape(v) == (4, 2)


def test_checkpoints_restore_into_other_layouts(tmp_path):
    strategies = (
        mirrored(8, RULES),
        mirrored(
            4,
            ex.ShardingRules(
                {"kernel": (None, "tensor")}, axes={"tensor": 4}, activations={"hidden": ("data",)}
            ),
        ),
        mirrored(2),
    )
    first = Training(strategies[0])
    first.run(1)
    saved = sg.train.Checkpoint(params=first.params, optimizer=first.optimizer)
    path = saved.save(str(tmp_path / "checkpoint"))
    runs = [first.run(1)]
    for strategy in strategies[1:]:
        other = Training(strategy)
        sg.train.Checkpoint(params=other.params, optimizer=other.optimizer).restore(path)
        runs.append(other.run(1))
    for run in runs[1:]:
        assert_equal_runs(run, runs[0])


def test_a_rule_that_matches_nothing_is_refused_before_the_first_step():
    strategy = mirrored(2, ex.ShardingRules({"kernle": ("tensor",)}, axes={"tensor": 2}))
    with strategy.scope():
        sg.Variable(np.zeros((2, 2)), name="dense/kernel")
    with pytest.raises(
        ValueError, match=r"got 'kernle', which matches none of dense/kernel\. Corr"
    ):
        strategy.run(lambda: None)
    with strategy.scope():
        sg.Variable(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"1 variable\(s\) were created without a name"):
        strategy.run(lambda: None)
    allowed = ex.ShardingRules({"kernle": ("tensor",)}, axes={"tensor": 2}, allow_unused=True)
    strategy = mirrored(2, allowed)
    with strategy.scope():
        sg.Variable(np.zeros((2, 2)), name="dense/kernel")
    strategy.run(lambda: None)


def test_what_does_not_fit_is_refused():
    strategy = mirrored(8, RULES)
    with strategy.scope(), pytest.raises(ValueError, match="got dim 1 of size 5 over tensor"):
        sg.Variable(np.zeros((4, 5)), name="kernel")
    refused = pytest.raises(ValueError, match="created with sharding_rules")
    with strategy.scope(), refused, ex.FullySharded(min_size=1):
        sg.Variable(np.zeros((4, 4)), name="kernel")
    with strategy.scope():
        v = sg.Variable(np.zeros((4, 4)), name="kernel")
        optimizer = sg.train.Optimizer(optax.sgd(0.1), shard_state=True)
        with pytest.raises(ValueError, match="created with sharding_rules"):
            optimizer.build([v])
    for x, layout, message in [
        (np.zeros((2, 3)), ("data", "tensor"), "dim 1 of size 3 over tensor"),
        (np.zeros((2, 4)), ("data", "model"), "got 'model' in the array passed to constrain"),
        (np.zeros((2, 4)), "hiden", r"\['hidden'\], got 'hiden'"),
    ]:
        strategy = mirrored(
            8, ex.ShardingRules({}, axes=RULES.axes, activations={"hidden": ("data",)})
        )
        with pytest.raises(ValueError, match=message):
            strategy.run(lambda x=x, layout=layout: ex.constrain(x, layout))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 6}, r"multiply to a divisor of the number of devices, got 4 for 6"),
        ({"devices_per_replica": 2}, "Leave devices_per_replica out"),
        ({"sharding_rules": {"kernel": ("fsdp",)}}, "must be ShardingRules or a keras"),
    ],
)
def test_refused_strategies(options, message):
    names = [f"CPU:{i}" for i in range(options.pop("devices", 8))]
    with pytest.raises(ValueError, match=message):
        sg.distribute.MirroredStrategy(names, **{"sharding_rules": RULES} | options)


def test_tpu_cores(unsharded):
    tpu = sg.tpu.experimental
    topology = tpu.Topology(jax.devices("cpu")[:8])
    assignment = tpu.DeviceAssignment.build(topology, [1, 1, 2, 2], num_replicas=2)
    strategy = sg.distribute.TPUStrategy(
        experimental_device_assignment=assignment, sharding_rules=RULES
    )
    assert_equal_runs(Training(strategy).run(), unsharded)
    assignment = tpu.DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=2)
    with pytest.raises(ValueError, match="multiply to, 4, got 2"):
        sg.distribute.TPUStrategy(experimental_device_assignment=assignment, sharding_rules=RULES)


def test_constrain_elsewhere_changes_nothing():
    x = np.ones((2, 3))
    assert ex.constrain(x, ("nothing",)) is x
    [result] = mirrored(2).experimental_local_results(
        mirrored(1).run(lambda: ex.constrain(x, "any"))
    )
    np.testing.assert_array_equal(result, x)
