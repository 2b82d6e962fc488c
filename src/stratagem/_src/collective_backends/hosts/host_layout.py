"""``HostLayout``: which processes are on which host, and which of them communicate with other hosts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

__all__ = ["HostLayout"]


@dataclass(frozen=True)
class HostLayout:
    """The processes of a job by host, and its lanes.

    A lane is one process on every host; the processes of a lane are connected to each other. The number of
    lanes is the number of processes of the smallest host. Each lane carries an equal share of the traffic
    between hosts.

    >>> from stratagem._src.collective_backends.hosts.host_layout import HostLayout
    >>> layout = HostLayout.of(["a", "b", "a", "b", "a"])
    >>> layout.hosts
    ((0, 2, 4), (1, 3))
    >>> layout.num_lanes, layout.lane_of(4), layout.lane_peers(2)
    (2, None, {1: 3})
    >>> layout.ranks_of_lane(0, 0)
    [0, 4]

    Attributes:
        hosts: The ranks on each host. Hosts are in the order of their first ranks.
    """

    hosts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, host_keys: Sequence[Hashable]) -> Self:
        """Returns the layout of processes, given a key of the host of each."""
        by_host: dict[Hashable, list[int]] = {}
        for rank, key in enumerate(host_keys):
            by_host.setdefault(key, []).append(rank)
        return cls(tuple(tuple(ranks) for ranks in by_host.values()))

    @property
    def num_processes(self) -> int:
        """The number of processes."""
        return sum(map(len, self.hosts))

    @property
    def num_lanes(self) -> int:
        """The number of processes of each host that communicate with other hosts."""
        return min(map(len, self.hosts))

    def host_of(self, rank: int) -> int:
        """Returns the index of a process's host."""
        return next(host for host, ranks in enumerate(self.hosts) if rank in ranks)

    def local_rank(self, rank: int) -> int:
        """Returns the rank of a process among those of its host."""
        return self.hosts[self.host_of(rank)].index(rank)

    def lane_of(self, rank: int) -> int | None:
        """Returns the lane of a process; ``None`` if it does not communicate with other hosts."""
        lane = self.local_rank(rank)
        return lane if lane < self.num_lanes else None

    def lane_peers(self, rank: int) -> dict[int, int]:
        """Returns the other processes of the lane of a process, by host."""
        lane = self.lane_of(rank)
        if lane is None:
            return {}
        own = self.host_of(rank)
        return {host: ranks[lane] for host, ranks in enumerate(self.hosts) if host != own}

    def ranks_of_lane(self, host: int, lane: int) -> list[int]:
        """Returns the processes of a host whose own data a lane carries in a gather or reduce-scatter."""
        return list(self.hosts[host][lane :: self.num_lanes])
