"""Orbax reads what we save, and we restore what Orbax has saved."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import stratagem as sg

VALUES = {
    "f": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.arange(3).astype(jnp.bfloat16),
    "flags": np.array([True, False]),
    "count": np.array(7, np.int32),
    "none": np.zeros((0, 3), np.float32),
    "complex": np.array([1 + 2j], np.complex64),
    "small": np.array([-1, 1], np.int8),
}


def equal(one, other):
    one, other = np.asarray(one), np.asarray(other)
    np.testing.assert_array_equal(one, other)
    assert one.dtype == other.dtype


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of ours, and what it holds."""
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variables = {name: sg.Variable(value) for name, value in VALUES.items()}
    large = np.random.default_rng(0).normal(size=(2000, 3000)).astype(np.float32)
    layers = [{"w": sg.Variable([1.0])}, {"w": sg.Variable([2.0])}]
    optimizer = sg.train.Optimizer(optax.adam(0.1))
    optimizer.apply_gradients([(np.ones((3, 4), np.float32), variables["f"])])
    checkpoint = sg.train.Checkpoint(
        variables=variables, layers=layers, large=large, optimizer=optimizer, epoch=3, rate=0.5, on=True
    )  # fmt: skip
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()
    return path, {name: v.numpy() for name, v in variables.items()}, large


@pytest.mark.parametrize("checkpointer", [ocp.PyTreeCheckpointer, ocp.StandardCheckpointer])
def test_orbax_reads_ours(saved, checkpointer):
    path, values, large = saved
    found = checkpointer().restore(path)
    for name, value in values.items():
        equal(found["variables"][name], value)
    equal(found["large"], large)
    equal(found["layers"][1]["w"], np.float32([2.0]))
    assert isinstance(found["layers"], list)
    assert (found["epoch"], found["rate"], found["on"], found["save_counter"]) == (3, 0.5, True, 1)
    state = found["optimizer"]
    assert int(state["shared"]["[0]ScaleByAdamState.count"]) == 1
    assert state["of"]["[0]ScaleByAdamState.mu"]["variables"]["f"].shape == (3, 4)


def test_orbax_places_ours_on_devices(saved):
    path, _, large = saved
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    one_device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one_device),
        ocp.PyTreeCheckpointer().metadata(path).item_metadata.tree,
    )
    target["large"] = jax.ShapeDtypeStruct(large.shape, large.dtype, sharding=sharding)
    found = ocp.StandardCheckpointer().restore(path, target)
    assert found["large"].sharding == sharding
    equal(found["large"], large)


def test_the_newer_interface_reads_ours(saved):
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    path, values, _ = saved
    equal(v1.load(path)["variables"]["f"], values["f"])


def theirs():
    return {
        "model": {"w": jnp.asarray(VALUES["f"]), "half": jnp.asarray(VALUES["half"])},
        "layers": [np.float32([1.0]), (jnp.ones(2), np.int32(5))],
        "epoch": 4,
        "rate": 0.25,
        "name": "a text",
        "nothing": None,
        "large": jnp.arange(3_000_000, dtype=jnp.float32).reshape(1000, 3000),
    }


def restore_theirs(path):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = sg.Variable(np.zeros((3, 4), np.float32))
        large = sg.Variable(np.zeros((1000, 3000), np.float32))
    half = sg.Variable(np.zeros(3), dtype=jnp.bfloat16)
    checkpoint = sg.train.Checkpoint(
        model={"w": w, "half": half}, layers=[np.zeros(1, np.float32), (jnp.zeros(2), np.int32(0))],
        epoch=0, rate=0.0, large=large,
    )  # fmt: skip
    checkpoint.restore(path).assert_consumed()
    equal(w.numpy(), VALUES["f"])
    equal(half.numpy(), VALUES["half"])
    equal(large.numpy(), np.asarray(theirs()["large"]))
    assert (checkpoint.epoch, checkpoint.rate) == (4, 0.25)
    equal(checkpoint.layers[1][0], np.ones(2, np.float32))
    assert isinstance(checkpoint.layers[1][0], jax.Array)
    assert int(checkpoint.layers[1][1]) == 5
    assert int(checkpoint.save_counter) == 0


@pytest.mark.parametrize("zarr3", [False, True])
@pytest.mark.parametrize("ocdbt", [False, True])
def test_theirs_are_restored(tmp_path, ocdbt, zarr3):
    path = tmp_path / "theirs"
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    with warnings.catch_warnings(), ocp.Checkpointer(handler) as checkpointer:
        warnings.simplefilter("ignore")  # Orbax warns of what is deprecated in itself
        checkpointer.save(path, theirs())
    restore_theirs(path)


def test_a_step_of_their_manager_is_restored(tmp_path):
    with ocp.CheckpointManager(tmp_path / "steps") as manager:
        manager.save(3, args=ocp.args.PyTreeSave(theirs()))
        manager.wait_until_finished()
    restore_theirs(tmp_path / "steps" / "3")


def test_what_does_not_fit_theirs_is_refused(tmp_path):
    ocp.PyTreeCheckpointer().save(tmp_path / "theirs", theirs())
    w = sg.Variable(np.ones((3, 3), np.float32))
    with pytest.raises(ValueError, match=r"'model/w' is float32\[3, 3\], but .* float32\[3, 4\]"):
        sg.train.Checkpoint(model={"w": w}).restore(tmp_path / "theirs")
    with pytest.raises(FileNotFoundError, match=r"no \['b', 'w'\]"):
        sg.train.Checkpoint(w=w, b=w).restore(tmp_path / "theirs")
    with pytest.raises(FileNotFoundError, match="no optimizers"):
        sg.train.Checkpoint(o=sg.train.Optimizer(optax.sgd(0.1))).restore(tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"'rate' is a Python int, but the checkpoint has float64"):
        sg.train.Checkpoint(rate=1).restore(tmp_path / "theirs")
    assert (w.numpy() == 1).all()
