"""``stratagem.errors``: every error by its public name."""

import pickle
import traceback

import pytest

import stratagem as sg
import stratagem.errors
from stratagem._src.cluster import errors as cluster_errors
from stratagem._src.core import errors as core_errors


def test_tracebacks_and_pickles_use_the_public_name():
    with pytest.raises(sg.errors.DeviceError) as raised:
        sg.distribute.MirroredStrategy(["nothing"])
    [line] = traceback.format_exception_only(raised.value)
    assert line.startswith("stratagem.errors.DeviceError: ")
    assert type(pickle.loads(pickle.dumps(raised.value))) is sg.errors.DeviceError


@pytest.mark.parametrize("module", [core_errors, cluster_errors], ids=["core", "cluster"])
def test_no_error_is_left_out(module):
    defined = {
        name
        for name, found in vars(module).items()
        if isinstance(found, type) and issubclass(found, Exception)
    }
    assert defined <= set(stratagem.errors.__all__)
    assert {getattr(stratagem.errors, name).__module__ for name in defined} == {"stratagem.errors"}
