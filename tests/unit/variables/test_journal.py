"""Changes of variables are taken back when the call around them fails."""

import pytest

import stratagem as sg
from stratagem._src.core.errors import ContextError
from stratagem._src.variables.transactions import atomically


class Failure(Exception):
    pass


def fail_after(change, **options):
    """Calls ``change`` with the journal of a block that fails then."""

    def call(journal):
        change(journal)
        raise Failure

    atomically(call, **options)


def test_a_block_that_fails_changes_nothing(mirrored, central):
    variables = [sg.Variable(1.0), mirrored(1.0), central(1.0)]
    with pytest.raises(Failure):
        fail_after(lambda _: [v.assign(2.0).assign(3.0) for v in variables])
    assert [float(v) for v in variables] == [1, 1, 1]


def test_a_block_that_succeeds_inside_of_one_that_fails():
    v, w = sg.Variable(1.0), sg.Variable(1.0)
    seen = []

    def change(_):
        v.assign(2.0)
        atomically(lambda _: (v.assign(3.0), w.assign(3.0)))
        seen.extend([float(v), float(w)])

    with pytest.raises(Failure):
        fail_after(change)
    assert seen == [3, 3]
    assert (float(v), float(w)) == (1, 1)


def test_elements_that_were_drawn_are_put_back_last_first():
    put_back = []

    def draw(journal):
        for element in (1, 2):
            journal.note_draw(lambda element=element: put_back.append(element))

    for keeps_draws in (True, False):
        with pytest.raises(Failure):
            fail_after(draw, keeps_draws=keeps_draws)
    assert put_back == [2, 1]


def test_a_change_after_the_end_is_refused():
    v = sg.Variable(1.0)
    journals = []
    with pytest.raises(Failure):
        fail_after(journals.append)
    with pytest.raises(ContextError, match="after its call has failed"):
        journals[0].record(v)
