"""Whose variables a server holds, and who may take them over."""

import numpy as np
import pytest

from stratagem._src.core.errors import PSUnavailableError, VariableError
from stratagem._src.parameter_server.client.unclaimed_variables import UnclaimedVariables
from stratagem._src.parameter_server.server.store import Store

RECORD = ["id", "w", [2], "float32", [["id/0", 0, 0, 2]], 0]


def store_of(owner):
    store = Store()
    store.attach(owner, "line")
    store.create(owner, "id/0", "w", (2,), "float32")
    return store


def test_a_variable_without_a_value_cannot_be_used():
    store = store_of("a")
    with pytest.raises(PSUnavailableError, match=r"'w'.*not restored"):
        store.find("id/0")
    assert store.uninitialized() == ["w"]
    store.find("id/0", allow_uninitialized=True).assign(np.ones(2, np.float32))
    assert store.find("id/0").read().tolist() == [1.0, 1.0]
    assert store.uninitialized() == []


def test_the_one_that_takes_over_gets_what_the_other_had():
    store = store_of("a")
    store.add_record("id/0", RECORD)
    store.take_over("b", "a")
    store.find("id/0", allow_uninitialized=True)
    with pytest.raises(VariableError, match="another process has taken that role"):
        store.create("a", "id/1", "x", (), "float32")
    with pytest.raises(VariableError, match="another coordinator was faster"):
        store.take_over("c", "a")
    store.attach("d", "line of d")
    assert store.variable_records() == {"owner": "d", "lineage": "line of d", "records": []}


def test_nothing_is_taken_over_from_one_that_was_restoring():
    whole, restarted = store_of("a"), Store()
    restarted.attach("a", "line", to_restore=True)
    assert (
        UnclaimedVariables.from_replies([whole.variable_records(), restarted.variable_records()])
        is None
    )
    restarted.mark_restored()
    assert (
        UnclaimedVariables.from_replies(
            [whole.variable_records(), restarted.variable_records()]
        ).owner
        == "a"
    )


def test_variables_of_one_name_are_claimed_in_their_order():
    records = [["b", "w", [], "int32", [["b/0", 0, 0, 1]], 5], RECORD]
    holdings = UnclaimedVariables.from_replies(
        [{"owner": "a", "lineage": "line", "records": records}]
    )
    assert holdings.next_order == 6
    with pytest.raises(VariableError, match=r"int32\[\].*float32\[2\]"):
        holdings.claim("w", (), "int32")
    assert holdings.claim("w", (2,), "float32").id == "id"
    assert holdings.claim("w", (), "int32").id == "b"
    assert holdings.claim("w", (), "int32") is None
