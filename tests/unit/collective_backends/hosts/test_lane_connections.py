"""Processes of a lane connect to each other, and both ends use the same connection."""

import time

from host_threads import CREDENTIALS, in_threads

from stratagem._src.collective_backends.hosts.lane_connections import LaneConnector
from stratagem._src.transport import Identity, Kind, Message, connect

NAMES = ["worker 0", "worker 1"]
SECONDS = 20.0


def test_an_attempt_that_was_given_up_after_the_handshake_is_not_used():
    with (
        LaneConnector(0, "127.0.0.1", CREDENTIALS) as first,
        LaneConnector(1, "127.0.0.1", CREDENTIALS) as second,
    ):
        doors, addresses = (first, second), [first.open(), second.open()]
        # As worker 1 does that waits in vain for the last message of the handshake, and tries again.
        given_up = connect(
            addresses[0],
            CREDENTIALS,
            own=Identity("exchange", 1),
            wanted=Identity("exchange", 0),
            deadline=time.monotonic() + SECONDS,
        )
        given_up.close()

        def connection_of(rank):
            other = 1 - rank
            made = doors[rank].connect(
                {other: addresses[other]}, NAMES, is_encrypted=True, timeout=SECONDS
            )
            return made[other]

        ends = in_threads(2, connection_of)
        deadline = time.monotonic() + SECONDS
        ends[1].send(Kind.EVENT, "", Message(b"here"), deadline)
        assert ends[0].receive(deadline)[2].body == b"here"
