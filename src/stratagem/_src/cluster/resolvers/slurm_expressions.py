"""Parses the compact notations of Slurm's variables: host lists and tasks per node."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from stratagem._src.cluster.errors import ClusterSpecError

__all__ = ["expand_host_list", "expand_tasks_per_node"]

_MAX_NODES = 65536  # Slurm's own limit
_PIECE = re.compile(r"(?P<text>[^\[\],\s]+)|\[(?P<ranges>[0-9,-]+)\]")
_RANGE = re.compile(r"(?P<first>\d{1,18})(?:-(?P<last>\d{1,18}))?", re.ASCII)
_REPEATED = re.compile(r"(?P<count>\d{1,9})(?:\(x(?P<times>\d{1,9})\))?", re.ASCII)


def expand_host_list(host_list: str) -> list[str]:
    """Returns the hosts of a Slurm host list, in order.

    Numbers keep their leading zeros, and several groups in one name produce every combination.

    >>> from stratagem._src.cluster import expand_host_list
    >>> expand_host_list("n[1-2],m5,o[3-4,6]")
    ['n1', 'n2', 'm5', 'o3', 'o4', 'o6']
    >>> expand_host_list("rack[0-1]n[08-09]")
    ['rack0n08', 'rack0n09', 'rack1n08', 'rack1n09']

    Raises:
        ClusterSpecError: If the list is malformed or names more than 65,536 hosts.
    """
    hosts: list[str] = []
    for name in _split_outside_brackets(host_list):
        hosts += _expand_name(name, host_list)
        if len(hosts) > _MAX_NODES:
            raise _bad_host_list(host_list, f"it names more than {_MAX_NODES} hosts")
    return hosts


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """Returns the number of tasks on each node, in the order of the host list.

    >>> from stratagem._src.cluster import expand_tasks_per_node
    >>> expand_tasks_per_node("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        ClusterSpecError: If the expression is malformed or describes more than 65,536 nodes.
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        found = _REPEATED.fullmatch(part.strip())
        times = int(found["times"] or 1) if found else 0
        if not found or not times or len(counts) + times > _MAX_NODES:
            raise ClusterSpecError(
                "Tasks per node must be counts such as '2(x3),1' for at most "
                f"{_MAX_NODES} nodes, got {tasks_per_node!r} (at {part!r})."
            )
        counts += [int(found["count"])] * times
    return counts


def _split_outside_brackets(host_list: str) -> Iterator[str]:
    depth = start = 0
    for position, character in enumerate(host_list):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield host_list[start:position]
            start = position + 1
    yield host_list[start:]


def _expand_name(name: str, host_list: str) -> list[str]:
    pieces: list[list[str]] = []
    position = num_hosts = 0
    while position < len(name) or not pieces:
        found = _PIECE.match(name, position)
        if not found:
            raise _bad_host_list(host_list, f"{name!r} is not a host name")
        ranges = found["ranges"]
        pieces.append([found["text"]] if ranges is None else _numbers(ranges, host_list))
        num_hosts = (num_hosts or 1) * len(pieces[-1])
        if num_hosts > _MAX_NODES:
            raise _bad_host_list(host_list, f"it names more than {_MAX_NODES} hosts")
        position = found.end()
    return ["".join(combination) for combination in itertools.product(*pieces)]


def _numbers(ranges: str, host_list: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        if not found:
            raise _bad_host_list(host_list, f"{part!r} is not a range")
        first, last = int(found["first"]), int(found["last"] or found["first"])
        if last < first or last - first >= _MAX_NODES:
            raise _bad_host_list(host_list, f"{part!r} is not an ascending range of hosts")
        width = len(found["first"])
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return numbers


def _bad_host_list(host_list: str, why: str) -> ClusterSpecError:
    return ClusterSpecError(
        f"A Slurm host list must look like 'n[1-2],m5,o[03-04]', got {host_list!r}: {why}."
    )
