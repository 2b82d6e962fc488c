"""What a Checkpoint holds besides variables and optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg


def restored(into, path):
    checkpoint = sg.train.Checkpoint(**into)
    checkpoint.restore(path).assert_consumed()
    return checkpoint


# --- arrays and numbers -----------------------------------------------------------------------------


def test_arrays_and_numbers_of_a_tree_are_replaced(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    tree = {
        "host": np.arange(3),
        "device": (jnp.arange(4.0), [jnp.float16(2.5)]),
        "spread": jax.device_put(jnp.arange(4.0), sharding),
        "key": jax.random.key(7, impl="rbg"),
        "step": np.int64(9),
        "none": None,
    }
    saved = sg.train.Checkpoint(tree=tree, epoch=3, rate=0.1, on=True)
    path = saved.save(tmp_path / "ckpt")
    tree["host"][:] = 0  # the save has a copy

    def blank(leaf):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0, impl="rbg")
        return type(leaf)(0) if isinstance(leaf, np.generic) else leaf * 0

    checkpoint = restored(
        {"tree": jax.tree.map(blank, tree), "epoch": 0, "rate": 1.0, "on": False}, path
    )
    found = checkpoint.tree
    assert found["host"].tolist() == [0, 1, 2]
    assert isinstance(found["host"], np.ndarray)
    assert found["device"][0].tolist() == [0, 1, 2, 3]
    assert found["device"][1][0] == 2.5
    assert found["spread"].sharding == sharding
    assert found["spread"].tolist() == [0, 1, 2, 3]
    assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()
    assert (found["step"], type(found["step"])) == (9, np.int64)
    assert (checkpoint.epoch, checkpoint.rate, checkpoint.on) == (3, 0.1, True)
    assert type(checkpoint.on) is bool


def test_a_restore_looks_at_each_of_many_arrays_a_few_times(tmp_path, monkeypatch):
    looked_at = []
    flatten = jax.tree_util.tree_flatten_with_path

    def counting(*args, **kwargs):
        ways, structure = flatten(*args, **kwargs)
        looked_at.append(len(ways))
        return ways, structure

    checkpoint = sg.train.Checkpoint(numbers=list(range(200)))
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.numbers = [0] * 200
    monkeypatch.setattr(jax.tree_util, "tree_flatten_with_path", counting)
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.numbers == list(range(200))
    assert sum(looked_at) <= 5 * 200


def test_numbers_that_do_not_fit_are_refused(tmp_path):
    path = sg.train.Checkpoint(a=1, b=2.5, c=np.ones(3)).save(tmp_path / "ckpt")
    checkpoint = sg.train.Checkpoint(a=2.0, b=3, c=np.ones(2))
    with pytest.raises(
        ValueError, match=r"'a' is a Python float.*'b' is a Python int.*'c' is float"
    ):
        checkpoint.restore(path)
    assert (checkpoint.a, checkpoint.b) == (2.0, 3)


# --- iterators --------------------------------------------------------------------------------------


def dataset():
    return sg.data.Dataset.range(50).shuffle(20, seed=3).repeat(2).batch(4)


def test_the_place_of_an_iterator(tmp_path):
    iterator = iter(dataset())
    for _ in range(3):
        next(iterator)
    checkpoint = sg.train.Checkpoint(iterator=iterator, v=sg.Variable(1.0))
    path = checkpoint.save(tmp_path / "ckpt")
    after = [element.tolist() for element in iterator]
    again = iter(dataset())
    next(again)
    checkpoint = sg.train.Checkpoint(iterator=again, v=sg.Variable(1.0))
    checkpoint.restore(path).assert_consumed()
    assert [element.tolist() for element in again] == after


def test_the_place_of_a_distributed_iterator(tmp_path):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def make():
        return iter(strategy.experimental_distribute_dataset(dataset()))

    def values(iterator):
        results = strategy.experimental_local_results
        return [[part.tolist() for part in results(element)] for element in iterator]

    iterator = make()
    for _ in range(5):
        next(iterator)
    path = sg.train.Checkpoint(iterator=iterator).save(tmp_path / "ckpt")
    after = values(iterator)
    again = make()
    next(again)
    restored({"iterator": again}, path)
    assert values(again) == after


def test_the_place_in_another_dataset_is_refused(tmp_path):
    iterator, v = iter(dataset()), sg.Variable(1.0)
    next(iterator)
    path = sg.train.Checkpoint(iterator=iterator, v=v).save(tmp_path / "ckpt")
    v.assign(2.0)
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    other = sg.data.Dataset.range(50).batch(5)
    for wrong in (iter(other), iter(strategy.experimental_distribute_dataset(other))):
        with pytest.raises(ValueError, match="state"):
            sg.train.Checkpoint(iterator=wrong, v=v).restore(path)
        assert float(v) == 2
        next(wrong)  # goes on from its own place
    with pytest.raises(ValueError, match="'v' is an iterator, but the checkpoint has float32"):
        sg.train.Checkpoint(v=iterator).restore(path)


def test_an_iterator_of_grain(tmp_path):
    grain = pytest.importorskip("grain")

    def make():
        return iter(grain.MapDataset.range(20).shuffle(seed=1).to_iter_dataset())

    iterator = make()
    for _ in range(4):
        next(iterator)
    path = sg.train.Checkpoint(iterator=iterator).save(tmp_path / "ckpt")
    after = [int(x) for x in iterator]
    again = make()
    restored({"iterator": again}, path)
    assert [int(x) for x in again] == after


# --- nnx --------------------------------------------------------------------------------------------


def test_nnx_modules_and_optimizers(tmp_path):
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, seed):
            rngs = nnx.Rngs(seed)
            self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)])
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.drop(x)

    def train(model, optimizer, steps):
        for _ in range(steps):
            gradients = nnx.grad(lambda m: jnp.sum(m(jnp.ones((4, 2))) ** 2))(model)
            optimizer.update(model, gradients)

    def make(seed):
        model = Model(seed)
        return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    model, optimizer = make(1)
    train(model, optimizer, 2)
    checkpoint = sg.train.Checkpoint(model=model, optimizer=optimizer)
    train(model, optimizer, 1)  # what is saved is what it has when it is saved
    path = checkpoint.save(tmp_path / "ckpt")
    again, optimizer_again = make(2)
    restored({"model": again, "optimizer": optimizer_again}, path)
    for each in ((model, optimizer), (again, optimizer_again)):
        train(*each, 2)
    leaves = jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        [jax.tree.leaves(nnx.state(m)) for m in (model, again)],
    )
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one, other)
    wrong = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    with pytest.raises(FileNotFoundError, match=r"no \['model/bias', 'model/kernel'\]"):
        sg.train.Checkpoint(model=wrong).restore(path)


def test_a_state_of_nnx_that_orbax_has_saved(tmp_path):
    nnx = pytest.importorskip("flax.nnx")
    ocp = pytest.importorskip("orbax.checkpoint")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(1))
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(tmp_path / "theirs", {"model": nnx.state(model)})
    checkpointer.wait_until_finished()
    checkpointer.save(tmp_path / "pure", {"model": nnx.to_pure_dict(nnx.state(model))})
    checkpointer.wait_until_finished()
    for name in ("theirs", "pure"):
        again = nnx.Linear(2, 3, rngs=nnx.Rngs(2))
        sg.train.Checkpoint(model=again).restore(tmp_path / name).assert_consumed()
        np.testing.assert_array_equal(again.kernel[...], model.kernel[...])


def test_arrays_and_variables_wherever_an_nnx_module_holds_them(tmp_path):
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, value):
            self.ours = nnx.data(sg.Variable([value]))
            self.bare = nnx.data(jnp.full(2, value))
            self.mixed = nnx.Param({"array": jnp.full(1, value), "ours": sg.Variable(value)})
            self.inner = nnx.List([nnx.Param(sg.Variable(value))])
            self.nested = nnx.data({"array": jnp.full(3, value), "ours": sg.Variable(value)})

        def variables(self):
            mixed = self.mixed.get_raw_value()["ours"]
            return [self.ours, mixed, self.inner[0].get_raw_value(), self.nested["ours"]]

    path = sg.train.Checkpoint(model=Model(2.0)).save(tmp_path / "ckpt")
    model = Model(1.0)
    variables = model.variables()
    restored({"model": model}, path)
    assert [v is w for v, w in zip(model.variables(), variables, strict=True)] == [True] * 4
    assert [v.numpy().tolist() for v in variables] == [[2], 2, 2, 2]
    assert model.bare.tolist() == [2, 2]
    assert model.mixed.get_raw_value()["array"].tolist() == [2]
    assert model.nested["array"].tolist() == [2, 2, 2]


def test_our_checkpoints_are_read_by_name(tmp_path):
    w = sg.Variable([1.0, 2.0])
    optimizer = sg.train.Optimizer(optax.sgd(0.1, momentum=0.9))
    optimizer.apply_gradients([([1.0, 1.0], w)])
    checkpoint = sg.train.Checkpoint(model={"w": w}, optimizer=optimizer, epoch=3)
    path = checkpoint.save(tmp_path / "ckpt")  # not waited for
    reader = sg.train.load_checkpoint(path)
    np.testing.assert_array_equal(reader.get_tensor("model/w"), w.numpy())
    assert reader.get_variable_to_dtype_map()["model/w"] == np.float32
    assert reader.has_tensor("epoch")
    listed = sg.train.list_variables(tmp_path)  # the latest
    assert ("model/w", [2]) in listed
    assert any(name.startswith("optimizer/") and name.endswith("model/w") for name, _ in listed)
    assert sg.train.load_variable(path, "epoch") == 3
    with pytest.raises(
        sg.errors.NotFoundError, match=r"no tensor 'v'; it has \['epoch', 'model/w'"
    ):
        reader.get_tensor("v")
    (tmp_path / "other").mkdir()
    with pytest.raises(sg.errors.NotFoundError, match="no checkpoint at"):
        sg.train.load_checkpoint(tmp_path / "other")


def test_a_checkpoint_holds_others(tmp_path):
    def made(number):
        layer = sg.train.Checkpoint(bias=sg.Variable(number), epoch=int(number))
        return layer, sg.train.Checkpoint(net=sg.train.Checkpoint(layers=[layer]), last=1)

    _, whole = made(1.0)
    path = whole.save(tmp_path / "ckpt")
    whole.sync()
    names = [name for name, _ in sg.train.list_variables(path)]
    assert {"net/layers/0/bias", "net/layers/0/epoch", "last"} <= set(names)
    same, again = made(2.0)
    again.restore(path).assert_consumed()
    assert (float(same.bias), same.epoch) == (1.0, 1)
    assert again.net.layers[0] is same
    # Part of it, as in TensorFlow's guide.
    bias = sg.Variable(5.0)
    part = sg.train.Checkpoint(net=sg.train.Checkpoint(layers=[sg.train.Checkpoint(bias=bias)]))
    part.restore(path).assert_existing_objects_matched()
    assert float(bias) == 1.0
    same.epoch = 7
    again.sync()
    assert sg.train.load_variable(again.save(tmp_path / "ckpt"), "net/layers/0/epoch") == 7
    with pytest.raises(sg.errors.InvalidArgumentError, match="cannot contain itself"):
        same.inner = again


def test_part_of_a_model_that_tensorflow_saved():
    files = "tests/unit/checkpoint/of_tensorflow/files"
    b = sg.Variable([0.0, 0.0])
    net = sg.train.Checkpoint(first=sg.train.Checkpoint(b=b))
    sg.train.Checkpoint(net=net).restore(f"{files}/module/ckpt").assert_existing_objects_matched()
    np.testing.assert_array_equal(b.numpy(), [5.0, 5.125])
