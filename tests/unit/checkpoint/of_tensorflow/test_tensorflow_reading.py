"""Tensors of TensorFlow's checkpoints, read without TensorFlow."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from bundle_writer import ones, write_bundle

import stratagem as sg

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def test_all_tensors_are_what_tensorflow_reads(files):
    assert len(files.prefixes()) >= 12
    for prefix in files.prefixes():
        expected = files.tensors(prefix)
        reader = sg.train.load_checkpoint(files.root / prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        assert shapes.keys() == dtypes.keys()
        assert shapes.keys() - {GRAPH} == expected.keys()
        for name, array in expected.items():
            found = np.asarray(reader.get_tensor(name), array.dtype)
            assert (shapes[name], dtypes[name]) == (list(array.shape), array.dtype), (prefix, name)
            assert np.asarray(reader.get_tensor(name)).dtype.kind in (array.dtype.kind, "S")
            np.testing.assert_array_equal(found, array, err_msg=f"{prefix} {name}")
            assert reader.has_tensor(name)
        assert not reader.has_tensor("other")


def test_a_tensor_without_dimensions_is_a_scalar(files):
    path = files.root / "dtypes/model"
    assert type(sg.train.load_variable(path, "types/scalar")) is np.float32
    assert sg.train.load_variable(str(path), "types/scalar_string:0") == b"one"
    assert ("types/empty", [0, 3]) in sg.train.list_variables(path)


def test_paths(files, tmp_path):
    root = files.root
    latest = sg.train.list_variables(root / "variables")
    assert latest == sg.train.list_variables(f"{root}/variables/ckpt-2")
    assert latest == sg.train.list_variables(f"{root}/variables/ckpt-2.index")
    assert sg.train.list_variables(root / "saved_model") == sg.train.list_variables(
        root / "saved_model/variables/variables"
    )
    names = [name for name, _ in sg.train.list_variables(root / "keras2_h5/weights.h5")]
    assert len(names) == 8
    assert sg.train.load_variable(root / "keras2_h5/weights.h5", names[0]).shape == (files.size,)
    # A path that text of protocol buffers has to quote.
    directory = tmp_path / 'a "ü"'
    directory.mkdir()
    for file in (root / "module").iterdir():
        shutil.copy(file, directory)
    quoted = "".join(
        f"\\{byte:03o}" if byte > 127 or byte == 34 else chr(byte) for byte in bytes(directory)
    )
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{quoted}/ckpt"\n')
    assert sg.train.latest_checkpoint(tmp_path) == f"{directory}/ckpt"
    for absent in ("none", "variables/ckpt-3"):
        with pytest.raises(sg.errors.NotFoundError, match=r"no TensorFlow checkpoint at .*\.index"):
            sg.train.load_checkpoint(root / absent)
    with pytest.raises(sg.errors.NotFoundError, match=r"no tensor 'x'; it has \['_CHECK"):
        sg.train.load_variable(root / "module/ckpt", "x")


def test_an_index_that_is_compressed(tmp_path):
    path = write_bundle(tmp_path / "c", {"a": ones(2), "ab": 2 * ones(1)}, snappy=True)
    assert sg.train.load_variable(path, "ab") == [2.0]


def test_slices(tmp_path):
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    parts = [("w", (4, 6), (0, 0), whole[:, :5]), ("w", (4, 6), (0, 5), whole[:, 5:])]
    path = write_bundle(tmp_path / "good", {}, slices=parts)
    np.testing.assert_array_equal(sg.train.load_variable(path, "w"), whole)
    wrong = {
        "do not cover": parts[:1],
        "overlap": [*parts, ("w", (4, 6), (1, 1), whole[1:2, 1:2])],
        "inside": [("w", (3, 6), *part[2:]) for part in parts],
    }
    for why, slices in wrong.items():
        path = write_bundle(tmp_path / "bad", {}, slices=slices)
        with pytest.raises(sg.errors.DataLossError, match=f"bad.index .*the slices of 'w' .*{why}"):
            sg.train.load_variable(path, "w")


def test_what_is_refused(tmp_path):
    path = write_bundle(tmp_path / "new", {"a": ones(2)}, min_consumer=2)
    with pytest.raises(sg.errors.InvalidArgumentError, match=r"new.index has version"):
        sg.train.load_checkpoint(path)
    path = write_bundle(tmp_path / "big", {"a": ones(2)}, big=True)
    with pytest.raises(sg.errors.InvalidArgumentError, match=r"big.index .* big-endian"):
        sg.train.load_checkpoint(path)
    path = write_bundle(tmp_path / "variant", {"a": ones(2)}, dtype="variant")
    reader = sg.train.load_checkpoint(path)
    assert reader.has_tensor("a")
    assert reader.get_variable_to_dtype_map() == {}
    with pytest.raises(sg.errors.InvalidArgumentError, match=r"'a' of .*variant has .* number 21"):
        reader.get_tensor("a")


@pytest.mark.slow
def test_reading_needs_no_tensorflow_and_starts_no_device(files):
    program = (
        "import sys, stratagem as sg\n"
        f"sg.train.load_variable({str(files.root / 'module/ckpt')!r}, {GRAPH!r})\n"
        "assert not {'tensorflow', 'keras', 'h5py', 'tensorstore'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
