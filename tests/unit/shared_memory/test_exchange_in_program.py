"""How a compiled program reaches the exchange of its workers; here of a single one."""

import jax
import numpy as np
import pytest

from stratagem._src.shared_memory.area import OwnArea
from stratagem._src.shared_memory.combination import Combination
from stratagem._src.shared_memory.shared_exchange import SharedExchange
from stratagem._src.shared_memory.workers import (
    exchange_in_program,
    num_sharing_processes,
    use_exchange,
)

TOKEN = np.zeros((1,), np.int32)


@pytest.fixture(autouse=True)
def exchange():
    use_exchange(SharedExchange(0, [OwnArea()]))
    yield
    use_exchange(None)


def program():
    """Returns a program that gathers from all workers; each has a trace of its own."""
    return jax.jit(lambda x: exchange_in_program(Combination.GATHER, [x], TOKEN, 0, 1)[0][0])


def test_a_program_exchanges():
    assert num_sharing_processes() == 1
    np.testing.assert_array_equal(program()(np.arange(3.0)), [np.arange(3.0)])


def test_a_program_of_workers_that_have_parted_has_no_part_in_what_others_exchange():
    old = program()
    old(np.arange(3.0))
    use_exchange(SharedExchange(0, [OwnArea()]))
    with pytest.raises(Exception, match="not together any more"):
        jax.block_until_ready(old(np.arange(3.0)))
    np.testing.assert_array_equal(program()(np.arange(3.0)), [np.arange(3.0)])
