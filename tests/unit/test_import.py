"""Importing the library has no effects; what it costs is measured in benchmarks/import_time.py."""

import subprocess
import sys

PROGRAM = """
import os, sys, threading
import jax

class Watched(dict):
    read = []
    def __getitem__(self, key):
        self.read.append(key)
        return super().__getitem__(key)
    def get(self, key, default=None):
        self.read.append(key)
        return super().get(key, default)

before = dict(os.environ)
os.environ = Watched(os.environ)
import stratagem, stratagem._src.cluster, stratagem._src.parameter_server.partitioners
stratagem.Variable, stratagem.distribute.MirroredStrategy
from jax._src import xla_bridge
started = xla_bridge.backends_are_initialized()
print(threading.active_count(), started, Watched.read, dict(os.environ) == before)
"""
USE = "import stratagem; stratagem.Variable"


def run(program, *flags):
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_import_starts_no_backend_and_no_thread_and_reads_no_environment():
    assert run(PROGRAM).strip() == "1 False [] True"


def test_import_leaves_optional_libraries_alone():
    optional = {"optax", "flax", "pyarrow", "keras", "tensorflow", "torch"}
    assert run(f"import sys; {USE}; print({optional} & sys.modules.keys())").strip() == "set()"


def test_import_alone_loads_no_jax():
    """The launcher and the membership server start with it."""
    server = "stratagem._src.control_plane.membership_server"
    program = f"import sys, stratagem, {server}; print('jax' in sys.modules)"
    assert run(program).strip() == "False"


def test_arrays_have_a_numpy_method_whichever_is_imported_first():
    use = "print(jax.numpy.float32(2).numpy())"
    for imports in "import stratagem, jax", "import jax, stratagem":
        assert run(f"{imports}; {use}").strip() == "2.0"


def test_variables_and_functions_load_no_dataset():
    """They recognise datasets among arguments without loading the hundred modules that make one."""
    program = f"import sys; {USE}; print('stratagem._src.data.dataset' in sys.modules)"
    assert run(program).strip() == "False"


def test_import_loads_neither_numpy_nor_what_only_traces_need():
    """They would be a third of the time of the import."""
    assert run("import sys, stratagem; print('numpy' in sys.modules)").strip() == "False"
    program = f"import sys, jax; {USE}; print('jax.extend.core' in sys.modules)"
    assert run(program).strip() == "False"


def test_errors_travel_by_name():
    """By value, an error of another process would be of another class, which ``except`` does not catch."""
    error = "stratagem._src.core.errors.PSUnavailableError"
    program = f"import stratagem, cloudpickle; print(cloudpickle.dumps({error}))"
    assert "stratagem.errors" in run(program)
    assert len(run(program)) < 200


def test_default_strategy_is_known_without_the_public_names():
    program = (
        "from stratagem._src.variables.variable import Variable; print(float(Variable(2.0) + 1))"
    )
    assert run(program).strip() == "3.0"


def test_names_are_listed_before_they_are_loaded():
    program = "import stratagem; print(set(stratagem.__all__) <= set(dir(stratagem)))"
    assert run(program).strip() == "True"
