"""``open_backend``: chooses and connects the collective backend of a group of processes.

Processes of one host share memory. Processes of several hosts also connect to each other. Where either is
impossible for one process, all of them leave collectives to XLA.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.cluster.errors import EnvironmentVariableError
from stratagem._src.collective_backends.hosts.host_layout import HostLayout
from stratagem._src.collective_backends.hosts.host_link import HostLink
from stratagem._src.collective_backends.hosts.lane_connections import (
    LaneConnector,
    UnreachableError,
)
from stratagem._src.collective_backends.hosts.multi_host_backend import MultiHostBackend
from stratagem._src.collective_backends.shared_memory.segment import (
    OwnSegment,
    PeerSegment,
    can_share,
)
from stratagem._src.collective_backends.shared_memory.shared_memory_backend import (
    CollectiveBackend,
    SharedMemoryBackend,
)
from stratagem._src.core.errors import StratagemError, UnavailableError
from stratagem._src.process.host_identity import boot_id
from stratagem._src.transport import Credentials

__all__ = ["arrays_are_encrypted", "open_backend"]

_ENCRYPT_VARIABLE = "STRATAGEM_ENCRYPT_ARRAYS"
_log = logging.getLogger("stratagem")
_MAX_SHOWN = 4
DEFAULT_CONNECT_SECONDS = 30.0


def arrays_are_encrypted() -> bool:
    """Returns whether the environment requires encryption of arrays between hosts.

    Raises:
        EnvironmentVariableError: If ``STRATAGEM_ENCRYPT_ARRAYS`` is neither 0 nor 1.
    """
    text = os.environ.get(_ENCRYPT_VARIABLE, "0").strip()
    if text not in ("0", "1"):
        raise EnvironmentVariableError(_ENCRYPT_VARIABLE, text, "0 or 1")
    return text == "1"


def open_backend(
    rank: int,
    names: Sequence[str],
    listen_host: str | None,
    credentials: Credentials,
    all_gather_object: Callable[[Any], list[Any]],
    *,
    is_encrypted: bool = False,
    timeout: float = DEFAULT_CONNECT_SECONDS,
) -> CollectiveBackend | None:
    """Returns the collective backend of a group of processes; ``None`` to leave collectives to XLA.

    All processes call it, and either all of them get a backend or none does. Those of one host share
    memory, and those of several hosts connect to each other.

    Args:
        rank: The rank of this process.
        names: The names of the processes in errors.
        listen_host: The address of this host in the cluster; ``None`` if it is not known.
        credentials: What the processes authenticate each other with.
        all_gather_object: Gathers plain data of all processes, in the order of their ranks.
        is_encrypted: Whether arrays must be encrypted between hosts; they are if one process requires it.
        timeout: Seconds until all listening processes must be connected; at most 30.

    Raises:
        UnavailableError: If two processes cannot reach each other, so that XLA could not connect them
            either; or arrays must be encrypted, but some processes cannot connect.
    """
    # A backend takes over what was opened; every other way out closes it. Each step is gathered from all
    # processes: one that used its backend while another left collectives to XLA would wait for it forever.
    with contextlib.ExitStack() as opened:
        own, problem = _own_segment(opened)
        offers = all_gather_object(problem if own is None else [*_host_key(), _offer(own)])
        refused = [offer for offer in offers if isinstance(offer, str)]
        if refused and rank == 0:
            _log.warning("Arrays travel between workers through XLA. %s", refused[0])
        if own is None or refused or None in offers:
            return None
        layout = HostLayout.of([tuple(offer[:2]) for offer in offers])
        local_offers = [offers[other][2] for other in layout.hosts[layout.host_of(rank)]]
        segments = _open_segments(own, layout.local_rank(rank), local_offers, opened)
        if not all(all_gather_object(segments is not None)):
            return None
        assert segments is not None
        if len(layout.hosts) == 1:
            opened.pop_all()
            return SharedMemoryBackend(rank, segments)
        link = _open_link(
            rank, layout, names, listen_host, credentials, all_gather_object, is_encrypted, timeout
        )
        if isinstance(link, _NoLink):
            return None
        opened.pop_all()
    return MultiHostBackend(rank, layout, segments, link)


def _own_segment(opened: contextlib.ExitStack) -> tuple[OwnSegment | None, str | None]:
    """Returns a segment; or ``None``, and the error if the system supports segments but refuses one."""
    if not can_share():
        return None, None
    try:
        return opened.enter_context(OwnSegment()), None
    except OSError as error:
        return None, f"The system refuses memory that processes share: {error}."


def _host_key() -> tuple[str, str]:
    """Returns a key that is equal in processes of one host that see each other's process ids."""
    return boot_id(), os.readlink("/proc/self/ns/pid")


def _offer(own: OwnSegment) -> list[Any]:
    """Returns the plain data that other processes of the host need to open a segment."""
    return [own.location, own.key.hex()]


def _open_segments(
    own: OwnSegment, number: int, offers: Sequence[list[Any]], opened: contextlib.ExitStack
) -> list[OwnSegment | PeerSegment] | None:
    """Returns the segments of the processes of this host; ``None`` if one cannot be opened.

    Args:
        own: The segment of this process.
        number: The position of its own offer.
        offers: The offers of all these processes.
        opened: Closes the segments.
    """
    segments: list[OwnSegment | PeerSegment] = []
    for i, (location, key) in enumerate(offers):
        try:
            segment = own if i == number else opened.enter_context(PeerSegment(*location))
        except (OSError, ValueError):
            return None
        # The key shows whether it is the segment that was offered.
        if segment.key.hex() != key:
            return None
        segments.append(segment)
    return segments


class _NoLink:
    """Some processes cannot connect, so no process uses connections."""


def _open_link(
    rank: int,
    layout: HostLayout,
    names: Sequence[str],
    listen_host: str | None,
    credentials: Credentials,
    all_gather_object: Callable[[Any], list[Any]],
    is_encrypted: bool,
    timeout: float,
) -> HostLink | _NoLink | None:
    """Returns the link of this process to other hosts; ``None`` if it is not in a lane."""
    peers = layout.lane_peers(rank)
    with contextlib.ExitStack() as opened:
        address, problem, is_unreachable = "", None, False
        if peers and listen_host is None:
            problem = f"The address of {names[rank]} is not known."
        elif peers and listen_host is not None:
            connector = opened.enter_context(LaneConnector(rank, listen_host, credentials))
            try:
                address = connector.open()
            except StratagemError as error:
                problem = str(error)
        told = all_gather_object([address, is_encrypted])
        is_encrypted = any(encrypts for _, encrypts in told)
        connections = {}
        if peers and problem is None and all(told[peer][0] for peer in peers.values()):
            try:
                addresses = {other: told[other][0] for other in peers.values()}
                connections = connector.connect(
                    addresses, names, is_encrypted=is_encrypted, timeout=timeout
                )
            except UnreachableError as error:
                problem, is_unreachable = str(error), True
            except StratagemError as error:
                problem = str(error)
        answers = all_gather_object(None if problem is None else [problem, is_unreachable])
        found = [text for text, _ in filter(None, answers)]
        # XLA would have to connect the same two hosts, at other ephemeral ports, and would wait forever.
        unreachable = [text for text, is_unreachable in filter(None, answers) if is_unreachable]
        if unreachable and len(unreachable) == len(found):
            raise UnavailableError(
                "Workers on different hosts must be able to connect to each other, but "
                f"{'; '.join(unreachable[:_MAX_SHOWN])}. Let the firewall between these hosts pass TCP "
                "connections in both directions, to the ephemeral ports "
                "(net.ipv4.ip_local_port_range)."
            )
        if found:
            if is_encrypted:
                raise UnavailableError(
                    f"Arrays must be encrypted between hosts, but workers cannot connect: {found[0]}"
                )
            if rank == 0:
                _log.warning("Arrays travel between hosts through XLA. %s", found[0])
            return _NoLink()
        if not peers:
            return None
        opened.pop_all()
    by_host = {host: connections[peer] for host, peer in peers.items()}
    peer_names = {host: names[peer] for host, peer in peers.items()}
    return HostLink(layout.host_of(rank), by_host, peer_names, when_closed=connector.close)
