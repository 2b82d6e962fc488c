"""Checkpoints of variables and optimizer state on parameter servers."""

import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg

TABLE = np.arange(40, dtype=np.float32).reshape(20, 2)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("stratagem.parameter_server.initial_value._BLOCK_BYTES", 24)


def test_into_another_number_of_shards_and_servers(servers, three_servers, tmp_path):
    saved = {
        "table": servers.sharded(TABLE, num_shards=3),
        "bias": servers.variable(np.arange(7.0), server=1),
        "steps": servers.variable(5),
        "none": servers.variable(np.zeros((0, 3))),
        "half": servers.variable(np.arange(5), dtype=jnp.bfloat16),
    }
    path = sg.train.Checkpoint(model=saved).save(tmp_path / "ckpt")
    np.testing.assert_array_equal(np.load(f"{path}/model/table.npy"), TABLE)
    other = three_servers
    restored = {
        "table": other.sharded(np.zeros((20, 2)), num_shards=4),
        "bias": other.sharded(np.zeros(7), num_shards=2),
        "steps": other.variable(0, server=2),
        "none": other.variable(np.zeros((0, 3))),
        "half": other.variable(np.zeros(5), dtype=jnp.bfloat16),
    }
    mirrored = {name: sg.Variable(np.zeros_like(v.numpy())) for name, v in saved.items()}
    for variables in (restored, mirrored):
        sg.train.Checkpoint(model=variables).restore(path)
        for name, variable in saved.items():
            np.testing.assert_array_equal(variables[name].numpy(), variable.numpy())


def test_a_restored_optimizer_goes_on_as_before(servers, tmp_path):
    """Steps, save, restore into other shards, steps: the same as all steps at once."""
    dense, rows = (
        np.ones((20, 2), np.float32),
        sg.IndexedSlices(np.ones((2, 2), np.float32), [3, 19]),
    )
    transformation = optax.adam(0.1)

    def steps(optimizer, table, weights, count):
        for _ in range(count):
            optimizer.apply_gradients([(rows, table), (dense, weights)])

    def make(num_shards):
        table = servers.sharded(TABLE, num_shards=num_shards)
        weights = servers.sharded(TABLE, num_shards=num_shards)
        optimizer = sg.train.Optimizer(transformation)
        checkpoint = sg.train.Checkpoint(table=table, weights=weights, optimizer=optimizer)
        return optimizer, table, weights, checkpoint

    optimizer, table, weights, checkpoint = make(2)
    steps(optimizer, table, weights, 2)
    path = checkpoint.save(tmp_path / "ckpt")
    steps(optimizer, table, weights, 2)

    optimizer_2, table_2, weights_2, checkpoint_2 = make(1)
    checkpoint_2.restore(path)
    steps(optimizer_2, table_2, weights_2, 2)
    np.testing.assert_allclose(weights_2.numpy(), weights.numpy(), rtol=1e-6)
    np.testing.assert_allclose(table_2.numpy(), table.numpy(), rtol=1e-6)


def test_what_does_not_fit_changes_nothing(servers, tmp_path):
    a, b = servers.variable(np.ones(3)), servers.variable(np.ones(2))
    path = sg.train.Checkpoint(a=a, b=b).save(tmp_path / "ckpt")
    a.assign(np.zeros(3))
    with pytest.raises(sg.errors.NotFoundError, match="has no 'c'; it has"):
        sg.train.Checkpoint(a=a, c=b).restore(path)
    with pytest.raises(
        sg.errors.InvalidArgumentError, match=r"is float32\[3\], but .* float32\[2\]"
    ):
        sg.train.Checkpoint(a=a, b=a).restore(path)
    with pytest.raises(sg.errors.NotFoundError, match="no optimizers"):
        sg.train.Checkpoint(a=a, o=sg.train.Optimizer(optax.sgd(1.0))).restore(path)
    (tmp_path / "ckpt-1" / "b.npy").write_bytes(b"not an array")
    with pytest.raises(sg.errors.DataLossError, match=r"b\.npy"):
        sg.train.Checkpoint(a=a, b=b).restore(path)
    assert not a.numpy().any()


def test_a_failed_save_leaves_nothing(servers, tmp_path):
    a = servers.variable(np.ones(3))
    servers.endpoints[0].shutdown()
    with pytest.raises(sg.errors.PSUnavailableError):
        sg.train.Checkpoint(a=a).save(tmp_path / "ckpt")
    assert list(tmp_path.iterdir()) == []
    assert sg.train.latest_checkpoint(tmp_path) is None


def test_numbers_and_the_latest(servers, tmp_path):
    v = sg.Variable(0.0)
    checkpoint = sg.train.Checkpoint(v=v)
    paths = [checkpoint.save(tmp_path / "ckpt") for _ in range(11)]
    assert paths[-1] == str(tmp_path / "ckpt-11")
    assert sg.train.latest_checkpoint(tmp_path) == paths[-1]
    assert set(json.loads((tmp_path / "ckpt-1" / "checkpoint.json").read_text())["arrays"]) == {"v"}
