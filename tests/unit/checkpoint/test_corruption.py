"""Damage to a checkpoint is noticed wherever it is, and a damaged checkpoint changes nothing."""

import random
from pathlib import Path

import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.checkpoint.format.tree_metadata import TreeMetadata


class Victim:
    """A small checkpoint, and something to restore it into."""

    def __init__(self, tmp_path):
        strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            small = [sg.Variable([1.0, 2.0]), sg.Variable(3)]
        # With a file of its own.
        self._variables = [*small, sg.Variable(np.arange(600_000, dtype=np.float32))]
        self._optimizer = sg.train.Optimizer(optax.sgd(0.1, momentum=0.9))
        self._optimizer.apply_gradients([(np.ones(2, np.float32), self._variables[0])])
        self._checkpoint = sg.train.Checkpoint(m=self._variables, o=self._optimizer)
        self._path = self._checkpoint.save(tmp_path / "ckpt")
        self._checkpoint.sync()
        self._saved = self._values()
        for variable in (*self._variables, *self._optimizer.variables):
            variable.assign(np.full(variable.shape, 9, variable.dtype))
        self.files = sorted(p for p in Path(self._path).rglob("*") if p.is_file())

    def used_files(self):
        """Returns the files without which it cannot be restored.

        Others are for Orbax, or were replaced while it was written.
        """
        used = []
        for file in self.files:
            data = file.read_bytes()
            if self.restore_damaged(file, None):
                used.append(file)
            file.write_bytes(data)
        # And where the arrays are, the large array, and the small ones.
        assert {file.name for file in used} >= {"_METADATA", "manifest.ocdbt"}
        assert len(used) >= 4
        return used

    def _values(self):
        return [v.numpy().tobytes() for v in (*self._variables, *self._optimizer.variables)]

    def restore_damaged(self, file, damaged):
        """Restores with a file that has other content; returns whether the damage was noticed."""
        before = self._values()
        if damaged is None:
            file.unlink()
        else:
            file.write_bytes(damaged)
        noticed = None
        try:
            self._checkpoint.restore(self._path)
        except (sg.errors.DataLossError, sg.errors.NotFoundError) as error:
            noticed = error
        if noticed is not None:
            assert str(file) in str(noticed) or isinstance(noticed, sg.errors.NotFoundError)
            assert self._values() == before
            return True
        # Some bytes say nothing.
        assert self._values() == self._saved, f"damage to {file} was not noticed"
        for variable in (*self._variables, *self._optimizer.variables):
            variable.assign(np.full(variable.shape, 9, variable.dtype))
        return False


@pytest.fixture
def victim(tmp_path):
    return Victim(tmp_path)


def positions(length, most, choose):
    return range(length) if length <= most else sorted(choose.sample(range(length), most))


@pytest.mark.parametrize("most", [30, pytest.param(2000, marks=[pytest.mark.slow])])
@pytest.mark.timeout(600)
def test_flipped_bytes_are_noticed(victim, most):
    choose = random.Random(5)
    used = victim.used_files()
    for file in used:
        data = file.read_bytes()
        noticed = 0
        for position in positions(len(data), most, choose):
            damaged = bytearray(data)
            damaged[position] ^= 1 << choose.randrange(8)
            noticed += victim.restore_damaged(file, bytes(damaged))
        assert noticed > 0
        file.write_bytes(data)


def test_truncations_and_losses_are_noticed(victim):
    choose = random.Random(6)
    for file in victim.used_files():
        data = file.read_bytes()
        noticed = [
            victim.restore_damaged(file, data[:length])
            for length in positions(len(data), 20, choose)
        ]
        noticed.append(victim.restore_damaged(file, b""))
        file.write_bytes(data)
        assert noticed[-1]
        assert not victim.restore_damaged(file, data)


def test_every_flipped_byte_of_the_metadata_is_noticed(victim):
    (path,) = (file for file in victim.files if file.name == "_METADATA")
    data = path.read_bytes()
    right = TreeMetadata.decode(data, path)
    choose = random.Random(7)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << choose.randrange(8)
        try:
            found = TreeMetadata.decode(bytes(damaged), path)
        except sg.errors.DataLossError:
            continue
        assert found == right or found.own is None, position


def test_what_is_not_there_is_not_found(tmp_path):
    checkpoint = sg.train.Checkpoint(v=sg.Variable(1.0))
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "file", tmp_path / "empty"):
        with pytest.raises(sg.errors.NotFoundError, match=f"no checkpoint at {path}"):
            checkpoint.restore(path)
    (tmp_path / "METADATA" / "_METADATA").mkdir(parents=True)
    with pytest.raises(sg.errors.DataLossError, match="_METADATA cannot be read"):
        checkpoint.restore(tmp_path / "METADATA")
