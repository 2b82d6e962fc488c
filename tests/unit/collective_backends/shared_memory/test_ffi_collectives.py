"""How a compiled program reaches the exchange of its workers; here of a single one."""

import jax
import numpy as np
import pytest

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.ffi_collectives import (
    collective_in_program,
    num_backend_processes,
    use_collective_backend,
)
from stratagem._src.collective_backends.shared_memory.segment import OwnSegment
from stratagem._src.collective_backends.shared_memory.shared_memory_backend import (
    SharedMemoryBackend,
)
from stratagem._src.collectives.collective_jit import CollectiveJit

TOKEN = np.zeros((1,), np.int32)


@pytest.fixture(autouse=True)
def exchange():
    use_collective_backend(SharedMemoryBackend(0, [OwnSegment()]))
    yield
    use_collective_backend(None)


def program():
    """Returns a program that gathers from all workers; each has a trace of its own."""
    return jax.jit(lambda x: collective_in_program(CollectiveOp.GATHER, [x], TOKEN, 0, 1)[0][0])


def test_a_program_exchanges():
    assert num_backend_processes() == 1
    np.testing.assert_array_equal(program()(np.arange(3.0)), [np.arange(3.0)])


def test_a_program_of_workers_that_have_parted_has_no_part_in_what_others_exchange():
    old = program()
    old(np.arange(3.0))
    use_collective_backend(SharedMemoryBackend(0, [OwnSegment()]))
    with pytest.raises(Exception, match="no longer one group"):
        jax.block_until_ready(old(np.arange(3.0)))
    np.testing.assert_array_equal(program()(np.arange(3.0)), [np.arange(3.0)])


class OneWorker:
    """A group of one replica, as far as a compiled function needs it."""

    def replicate(self, value):
        return jax.device_put(value)


def compiled_with_number():
    def gather(x):
        return collective_in_program(CollectiveOp.GATHER, [x], TOKEN, 0, 1)[0][0]

    return CollectiveJit(gather, OneWorker(), (), {})


def test_a_compiled_program_is_the_same_for_workers_that_have_formed_again():
    # Else the compilation cache never finds it.
    old = compiled_with_number()
    before = old.lower(np.arange(3.0)).as_text()
    np.testing.assert_array_equal(old(np.arange(3.0)), [np.arange(3.0)])
    use_collective_backend(SharedMemoryBackend(0, [OwnSegment()]))
    new = compiled_with_number()
    assert new.lower(np.arange(3.0)).as_text() == before
    np.testing.assert_array_equal(new(np.arange(3.0)), [np.arange(3.0)])
    # What was launched before brings the number of then.
    with pytest.raises(Exception, match="no longer one group"):
        jax.block_until_ready(old._jitted(old._placed, np.arange(3.0)))
    np.testing.assert_array_equal(old(np.arange(3.0)), [np.arange(3.0)])
