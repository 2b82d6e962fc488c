"""Every byte of a checkpoint that is damaged is noticed, and a damaged checkpoint changes nothing."""

import json
import random
from pathlib import Path

import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.training.checkpoint_index_reading import decode_index


class Victim:
    """A small checkpoint, and something to restore it into."""

    def __init__(self, tmp_path):
        strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            self._variables = [sg.Variable([1.0, 2.0]), sg.Variable(3)]
        self._optimizer = sg.train.Optimizer(optax.sgd(0.1, momentum=0.9))
        self._optimizer.apply_gradients([(np.ones(2, np.float32), self._variables[0])])
        self._checkpoint = sg.train.Checkpoint(m=self._variables, o=self._optimizer)
        self._path = self._checkpoint.save(tmp_path / "ckpt")
        self._saved = self._values()
        for variable in (*self._variables, *self._optimizer.variables):
            variable.assign(np.full(variable.shape, 9, variable.dtype))
        self.files = sorted(p for p in (tmp_path / "ckpt-1").rglob("*") if p.is_file())

    def _values(self):
        return [v.numpy().tolist() for v in (*self._variables, *self._optimizer.variables)]

    def restore_damaged(self, file, damaged):
        """Restores with a file that has other content; returns whether the damage was noticed."""
        before = self._values()
        file.write_bytes(damaged)
        noticed = None
        try:
            self._checkpoint.restore(self._path)
        except sg.errors.DataLossError as error:
            noticed = str(error)
        if noticed is None:
            # White space of the index says nothing.
            assert file.name == "checkpoint.json", "damage was not noticed"
            assert self._values() == self._saved
            return False
        assert str(file) in noticed
        assert self._values() == before
        return True


@pytest.fixture
def victim(tmp_path):
    return Victim(tmp_path)


def test_every_flipped_byte_is_noticed(victim):
    assert len(victim.files) == 5
    choose = random.Random(5)
    for file in victim.files:
        data = file.read_bytes()
        noticed = 0
        for position in range(len(data)):
            damaged = bytearray(data)
            damaged[position] ^= 1 << choose.randrange(8)
            noticed += victim.restore_damaged(file, bytes(damaged))
        assert noticed > len(data) / 2
        file.write_bytes(data)


def test_every_truncation_is_noticed(victim):
    for file in victim.files:
        data = file.read_bytes()
        for length in range(len(data)):
            assert victim.restore_damaged(file, data[:length])
        for more in (b"x", b"\0" * 64):
            assert victim.restore_damaged(file, data + more)
        file.write_bytes(data)


@pytest.mark.slow
def test_every_other_byte_everywhere_in_the_index_is_noticed(victim):
    (path,) = (file for file in victim.files if file.suffix == ".json")
    data = path.read_bytes()
    right = decode_index(data, path)
    for position in range(len(data)):
        for byte in range(256):
            damaged = data[:position] + bytes([byte]) + data[position + 1 :]
            try:
                assert decode_index(damaged, path) == right
            except sg.errors.DataLossError:
                continue


@pytest.mark.slow
def test_any_byte_of_an_index_of_version_1_may_be_damaged():
    """Without a checksum not all damage is noticed, but what is has a name."""
    array = {"shape": [2, 3], "dtype": "float32"}
    arrays = {"v": array, "o/here/0": array, "o/v/0": array}
    index = {"version": 1, "arrays": arrays, "optimizers": ["o"]}
    data = json.dumps(index, indent=1).encode()
    noticed = 0
    for position in range(len(data)):
        for byte in range(256):
            damaged = data[:position] + bytes([byte]) + data[position + 1 :]
            try:
                decode_index(damaged, Path("index"))
            except sg.errors.DataLossError:
                noticed += 1
    assert noticed > 50_000


def test_what_is_not_there_is_not_found(tmp_path):
    checkpoint = sg.train.Checkpoint(v=sg.Variable(1.0))
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "file", tmp_path / "empty"):
        with pytest.raises(sg.errors.NotFoundError, match=f"no checkpoint at {path}"):
            checkpoint.restore(path)
    (tmp_path / "strange" / "checkpoint.json").mkdir(parents=True)
    with pytest.raises(sg.errors.DataLossError, match="cannot be read"):
        checkpoint.restore(tmp_path / "strange")
