import errno
import logging
import os
import threading

import numpy as np
import pytest
from host_threads import in_threads, open_on, share_of

from stratagem._src.collective_backends import backend_selection
from stratagem._src.collective_backends.backend_selection import open_backend
from stratagem._src.collective_backends.hosts.multi_host_backend import MultiHostBackend
from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.shared_memory_backend import (
    SharedMemoryBackend,
)
from stratagem._src.core.errors import UnavailableError
from stratagem._src.transport import Credentials


def sums(exchanges):
    """Returns what every process has after a sum of 1, 2, 3, and so on; closes the exchanges."""

    def add(rank):
        share = share_of(CollectiveOp.SUM, [np.array([rank + 1], np.int32)], 1)
        assert exchanges[rank].run(CollectiveOp.SUM, [share]) is None
        return share.results[0].tolist()

    try:
        return in_threads(len(exchanges), add)
    finally:
        for exchange in exchanges:
            exchange.close()


def test_processes_of_one_host_share_memory():
    exchanges = open_on(["a", "a"])
    assert all(isinstance(exchange, SharedMemoryBackend) for exchange in exchanges)
    assert sums(exchanges) == [[3], [3]]


@pytest.mark.parametrize("hosts", [["a", "b"], ["a", "a", "b"], ["a", "b", "a", "c", "b"]])
def test_processes_of_several_hosts_connect(hosts):
    exchanges = open_on(hosts)
    assert all(isinstance(exchange, MultiHostBackend) for exchange in exchanges)
    total = len(hosts) * (len(hosts) + 1) // 2
    assert sums(exchanges) == [[total]] * len(hosts)


def with_another_key(rank, number, said):
    return [*said[:2], [said[2][0], "00" * 32]] if (rank, number) == (1, 0) else said


def without_memory(rank, number, said):
    return None if (rank, number) == (1, 0) else said


def without_a_process(rank, number, said):
    return [*said[:2], [[2**22 + 1, 3], said[2][1]]] if (rank, number) == (1, 0) else said


def without_an_address(rank, number, said):
    return ["127.0.0.1:1", said[1]] if (rank, number) == (0, 2) else said


@pytest.mark.parametrize("change", [with_another_key, without_memory, without_a_process])
def test_nobody_shares_memory_unless_all_can(change):
    assert open_on(["a", "a", "a"], change) == [None, None, None]


def test_two_that_cannot_connect_are_named_to_all(monkeypatch):
    # Another port of worker 0, where nobody listens, as behind a firewall that refuses.
    errors = []

    def open_or_note(*arguments, **options):
        try:
            return open_backend(*arguments, timeout=1.5, **options)
        except UnavailableError as error:
            errors.append(str(error))
            return None

    monkeypatch.setattr("host_threads.open_backend", open_or_note)
    assert open_on(["a", "a", "b", "c"], without_an_address) == [None] * 4
    assert len(errors) == 4
    for error in errors:
        assert "worker 2 cannot connect to worker 0 at 127.0.0.1:1" in error
        assert "Let the firewall between these hosts pass" in error


def test_nobody_connects_unless_all_know_their_addresses(caplog):
    with caplog.at_level(logging.WARNING, "stratagem"):
        assert open_on(["a", "b"], listen_hosts=[None, "127.0.0.1"]) == [None, None]
    [message] = caplog.messages
    assert "through XLA" in message
    assert "worker 0" in message


def test_a_process_that_does_not_know_the_secret_is_not_connected(monkeypatch, caplog):
    monkeypatch.setattr(
        "stratagem._src.collective_backends.hosts.lane_connections._CONNECT_SECONDS", 1.0
    )
    credentials = [Credentials(secret="one"), Credentials(secret="two")]
    with caplog.at_level(logging.WARNING, "stratagem"):
        assert open_on(["a", "b"], credentials=credentials) == [None, None]
    assert any("secret" in message for message in caplog.messages)


def test_arrays_that_must_be_encrypted_never_travel_through_xla(monkeypatch):
    monkeypatch.setattr(
        "stratagem._src.collective_backends.hosts.lane_connections._CONNECT_SECONDS", 1.0
    )
    with pytest.raises(UnavailableError, match="must be encrypted"):
        open_on(["a", "b"], listen_hosts=[None, "127.0.0.1"], is_encrypted=True)


def test_systems_without_such_memory_do_without(monkeypatch):
    monkeypatch.setattr(backend_selection, "can_share", lambda: False)
    assert open_on(["a", "a"]) == [None, None]


def test_all_do_without_memory_that_one_is_refused(monkeypatch, caplog):
    refused = threading.Lock()
    create = os.memfd_create

    def create_or_refuse(*args):
        if refused.acquire(blocking=False):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return create(*args)

    monkeypatch.setattr(os, "memfd_create", create_or_refuse)
    with caplog.at_level("WARNING", "stratagem"):
        assert open_on(["a", "a", "a"]) == [None, None, None]
    [record] = caplog.records
    assert record.getMessage() == (
        "Arrays travel between workers through XLA. The system refuses memory that processes share: "
        "[Errno 12] Cannot allocate memory."
    )
