"""TensorFlow's checkpoints are restored into variables, structures and modules of ours."""

import shutil

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bundle_writer import write_bundle
from written_files import numbers

import stratagem as sg


def zeros(*shape):
    return sg.Variable(np.zeros(shape, np.float32))


def structure(size):
    """Returns a Checkpoint like the one that ``write_checkpoints.variables`` saves."""
    return sg.train.Checkpoint(
        w=zeros(3, size),
        step=sg.Variable(0),
        blocks=[zeros(2), {"scale": zeros(), "shift": 0.0}],
        pair=(zeros(2), np.array([False, False])),
    )


class Dense(sg.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.w, self.b = zeros(inputs, outputs), zeros(outputs)


class Net(sg.Module):
    def __init__(self, size):
        super().__init__()
        self.first = Dense(3, size)
        self.rest = [Dense(size, size), Dense(size, 2)]
        self.named = {"gain": zeros()}


def test_variables_numbers_and_arrays_in_structures(files):
    checkpoint = structure(files.size)
    latest = sg.train.latest_checkpoint(files.root / "variables")
    assert latest.endswith("/ckpt-2")
    checkpoint.restore(latest).assert_consumed().assert_existing_objects_matched()
    np.testing.assert_array_equal(checkpoint.w.numpy(), numbers(3, files.size))
    first, rest = checkpoint.blocks
    np.testing.assert_array_equal(first.numpy(), numbers(2))
    assert (float(rest["scale"]), rest["shift"]) == (0.5, -1.5)
    np.testing.assert_array_equal(checkpoint.pair[0].numpy(), numbers(2, start=1.0))
    assert checkpoint.pair[1].tolist() == [True, False]
    assert (int(checkpoint.step), int(checkpoint.save_counter)) == (8, 2)
    checkpoint.save_counter.assign(5)
    checkpoint.read(f"{files.root}/variables/ckpt-1").assert_consumed()
    assert (int(checkpoint.step), int(checkpoint.save_counter)) == (7, 5)


@pytest.mark.parametrize("name", ["module/ckpt", "saved_model"])
def test_modules(files, name):
    """The root of a SavedModel is the module itself."""
    net = Net(files.size)
    checkpoint = sg.train.Checkpoint(net) if name == "saved_model" else sg.train.Checkpoint(net=net)
    checkpoint.restore(files.root / name).assert_consumed()
    np.testing.assert_array_equal(net.first.w.numpy(), numbers(3, files.size))
    np.testing.assert_array_equal(net.rest[1].b.numpy(), numbers(2, start=5.0))
    assert float(net.named["gain"]) == 3.0
    if name == "saved_model":
        with pytest.raises(sg.errors.NotFoundError, match=r"has no \['net/.*Checkpoint\(root="):
            sg.train.Checkpoint(net=net).restore(files.root / name)


def test_partitioned_variables_of_tensorflow_1_by_name(files):
    embedding = zeros(7, files.size)
    bias = sg.Variable(np.zeros(files.size, np.float32), name="bias")
    checkpoint = sg.train.Checkpoint(net={"embedding": embedding}, other=bias)
    checkpoint.restore(files.root / "partitioned/model.ckpt").assert_consumed()
    np.testing.assert_array_equal(embedding.numpy(), numbers(7, files.size))
    np.testing.assert_array_equal(bias.numpy(), numbers(files.size))


def test_variables_of_a_strategy(files):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        a, b = zeros(20, files.size), zeros(3)
    sg.train.Checkpoint(a=a, b=b).restore(files.root / "sharded/ckpt").expect_partial()
    for value in strategy.experimental_local_results(a):
        np.testing.assert_array_equal(value.numpy(), numbers(20, files.size))


def test_what_does_not_match_is_refused_before_anything_changes(files):
    path, size = files.root / "variables/ckpt-1", files.size
    w = zeros(3, size)

    def refused(error, why, **objects):
        with pytest.raises(error, match=why):
            sg.train.Checkpoint(w=w, **objects).restore(path)
        assert not w.numpy().any()

    mismatch, missing = sg.errors.InvalidArgumentError, sg.errors.NotFoundError
    refused(
        mismatch,
        r"'blocks/0' is float32\[3\], but the checkpoint has float32\[2\]",
        blocks=[zeros(3)],
    )
    half = sg.Variable(np.zeros(2), dtype=jnp.bfloat16)
    refused(mismatch, r"'blocks/0' is bfloat16\[2\], but .* float32\[2\]", blocks=[half])
    refused(mismatch, r"'step' is float32\[\], but the checkpoint has int64\[\]", step=zeros())
    refused(
        missing,
        r"ckpt-1 has no \['blocks/2'\]; it has \[.*'pair/0'",
        blocks=[zeros(2), {}, zeros()],
    )
    refused(missing, r"ckpt-1 has no \['other', 'number'\]", other=zeros(), number=1)
    refused(missing, r"no optimizers \['optimizer'\]", optimizer=sg.train.Optimizer(optax.sgd(0.1)))
    status = sg.train.Checkpoint(w=w).restore(path).expect_partial()
    with pytest.raises(AssertionError, match=r"has \['blocks/0', 'blocks/1/scale', .* 'step'\]"):
        status.assert_consumed()


def test_integers_of_64_bits_that_do_not_fit(tmp_path):
    path = write_bundle(tmp_path / "c", {"a": np.array([1 << 31]), "b": np.array([-(1 << 31)])})
    a, b = sg.Variable([0]), sg.Variable([0])
    with pytest.raises(sg.errors.InvalidArgumentError, match=r"'a' has values of int64 .* int32"):
        sg.train.Checkpoint(a=a, b=b).restore(path)
    assert b.numpy() == [0]
    sg.train.Checkpoint(b=b).restore(path)
    assert b.numpy() == [-(1 << 31)]


def test_a_manager_continues_in_the_directory_of_tensorflows(files, tmp_path):
    shutil.copytree(files.root / "variables", tmp_path, dirs_exist_ok=True)
    checkpoint = structure(files.size)
    manager = sg.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-2")
    checkpoint.step.assign_add(1)
    assert manager.save() == str(tmp_path / "ckpt-3")
    checkpoint.sync()
    assert (
        manager.latest_checkpoint
        == sg.train.latest_checkpoint(tmp_path)
        == str(tmp_path / "ckpt-3")
    )
    assert manager.checkpoints == [str(tmp_path / "ckpt-3")]
    assert (tmp_path / "ckpt-2.index").exists()  # TensorFlow's are not removed
    again = structure(files.size)
    again.restore(sg.train.latest_checkpoint(tmp_path)).assert_consumed()
    assert int(again.step) == 9
