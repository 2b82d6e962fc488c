"""Nothing wrong is read from a corrupt TensorFlow checkpoint: errors name a file and the reason."""

import random
import re
import shutil

import numpy as np
import pytest

import stratagem as sg

CHECKPOINTS = ("variables/ckpt-1", "dtypes/model", "partitioned/boxes", "sharded/ckpt")


def read_all(prefix):
    reader = sg.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def outcome(prefix, expected):
    """Returns whether all was read; what was read must be right, and the error must name a file."""
    try:
        found = read_all(prefix)
    except sg.errors.DataLossError as error:
        text = str(error)
        assert re.search(rf"{prefix.name}\.(index|data-)", text), text
        assert "is corrupt: " in text
        return False
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    return True


def copied(files, name, directory):
    source = files.root / name
    for file in source.parent.glob(f"{source.name}.*"):
        shutil.copy(file, directory)
    return directory / source.name


@pytest.mark.parametrize("num_changes", [20, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_flipped_bits_and_cut_files(files, name, num_changes, tmp_path):
    prefix = copied(files, name, tmp_path)
    expected = read_all(prefix)
    rng = random.Random(name)
    num_harmless = 0
    for file in sorted(tmp_path.iterdir()):
        data = file.read_bytes()
        for _ in range(num_changes):
            where = rng.randrange(len(data))
            changed = data[where] ^ 1 << rng.randrange(8)
            file.write_bytes(data[:where] + bytes([changed]) + data[where + 1 :])
            num_harmless += outcome(prefix, expected)
        for length in (
            0,
            len(data) - 1,
            *(rng.randrange(len(data)) for _ in range(num_changes // 4)),
        ):
            file.write_bytes(data[:length])
            assert not outcome(prefix, expected)
        file.write_bytes(data)
    # Only what nobody reads may change: the padding of the footer, and the block of no metadata.
    assert num_harmless < num_changes / 2
    assert outcome(prefix, expected)


def test_what_is_wrong_is_said(files, tmp_path):
    prefix = copied(files, "module/ckpt", tmp_path)
    index, data = tmp_path / "ckpt.index", tmp_path / "ckpt.data-00000-of-00001"
    w = sg.Variable(np.zeros((3, files.size), np.float32))
    checkpoint = sg.train.Checkpoint(net={"first": {"w": w}})

    def refused(why):
        with pytest.raises(sg.errors.DataLossError, match=why):
            checkpoint.restore(prefix)
        assert not w.numpy().any()

    content = data.read_bytes()
    offset = content.index(
        files.tensors("module/ckpt")["net/first/w/.ATTRIBUTES/VARIABLE_VALUE"].tobytes()
    )
    data.write_bytes(content[: offset + 5] + b"\xff" + content[offset + 6 :])
    refused(r"00000-of-00001 .*: the checksum of 'net/first/w/.ATTRIBUTES/VARIABLE_VALUE' is wrong")
    data.write_bytes(content[:offset])
    refused(r"00000-of-00001 .*: it is truncated: '.*' ends at byte \d+, but the file has \d+")
    data.unlink()
    refused(r"00000-of-00001 .*: '.*' is in it, but it cannot be read \(No such file")
    data.write_bytes(content)
    content = index.read_bytes()
    index.write_bytes(content[:30])
    refused(r"ckpt.index .*: it has 30 bytes, which is less than a table's footer")
    index.write_bytes(content[:-9])
    refused(r"ckpt.index .*: it does not end as a table does")
    index.write_bytes(content[:9] + b"?" + content[10:])
    refused(r"ckpt.index .*: the checksum of the block at byte 0 is wrong")
    index.write_bytes(content)
    checkpoint.restore(prefix)
    assert w.numpy().any()


def test_a_corrupt_h5_file(files, tmp_path):
    content = (files.root / "keras2_h5/weights.h5").read_bytes()
    path = tmp_path / "weights.h5"
    for length in (0, 100, len(content) // 2):
        path.write_bytes(content[:length])
        with pytest.raises(
            sg.errors.DataLossError, match=r"weights.h5 .*: it is truncated or not an HDF5"
        ):
            sg.train.load_checkpoint(path)
