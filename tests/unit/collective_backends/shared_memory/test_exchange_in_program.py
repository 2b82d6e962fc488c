"""How a compiled program reaches the exchange of its workers; here of a single one."""

import jax
import numpy as np
import pytest

from stratagem._src.collective_backends.shared_memory.area import OwnArea
from stratagem._src.collective_backends.shared_memory.combination import Combination
from stratagem._src.collective_backends.shared_memory.shared_exchange import SharedExchange
from stratagem._src.collective_backends.shared_memory.workers import (
    exchange_in_program,
    num_sharing_processes,
    use_exchange,
)
from stratagem._src.collectives.exchanging_jit import ExchangingJit

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


class OneWorker:
    """A group of one replica, as far as a compiled function needs it."""

    def replicate(self, value):
        return jax.device_put(value)


def compiled_with_number():
    def gather(x):
        return exchange_in_program(Combination.GATHER, [x], TOKEN, 0, 1)[0][0]

    return ExchangingJit(gather, OneWorker(), (), {})


def test_a_compiled_program_is_the_same_for_workers_that_have_formed_again():
    # Else the compilation cache never finds it.
    old = compiled_with_number()
    before = old.lower(np.arange(3.0)).as_text()
    np.testing.assert_array_equal(old(np.arange(3.0)), [np.arange(3.0)])
    use_exchange(SharedExchange(0, [OwnArea()]))
    new = compiled_with_number()
    assert new.lower(np.arange(3.0)).as_text() == before
    np.testing.assert_array_equal(new(np.arange(3.0)), [np.arange(3.0)])
    # What was launched before brings the number of then.
    with pytest.raises(Exception, match="not together any more"):
        jax.block_until_ready(old._jitted(old._placed, np.arange(3.0)))
    np.testing.assert_array_equal(old(np.arange(3.0)), [np.arange(3.0)])
