"""``WorkerLinks``: the links to all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stratagem._src.parameter_server.coordinator.worker_link import WorkerLink

__all__ = ["WorkerLinks"]


class WorkerLinks(Mapping[int, WorkerLink]):
    """The link to each worker, by its index."""

    def __init__(self) -> None:
        # Replaced as a whole, never changed: it is also read without the coordinator's lock.
        self._links: dict[int, WorkerLink] = {}

    def __getitem__(self, worker: int) -> WorkerLink:
        return self._links[worker]

    def __iter__(self) -> Iterator[int]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def update(
        self, addresses: Mapping[int, str], make: Callable[[int, str], WorkerLink]
    ) -> list[WorkerLink]:
        """Takes in where workers are, and returns the links to new ones; with the coordinator's lock.

        Args:
            addresses: By index. A worker that is missing is not forgotten.
            make: Returns a link, given the index and address of a worker.
        """
        new = {
            index: make(index, address)
            for index, address in addresses.items()
            if index not in self._links
        }
        for index, link in self._links.items():
            link.address = addresses.get(index, link.address)
        self._links = {**self._links, **new}
        return list(new.values())

    def wake_one(self, workers: frozenset[int] | None, load: Callable[[int], int]) -> None:
        """Wakes the link with the least to do that has room, of some workers or all."""
        links = [
            link
            for link in self._links.values()
            if link.has_room and (workers is None or link.index in workers)
        ]
        if links:
            min(links, key=lambda link: load(link.index)).wake()

    def wake_all(self) -> None:
        """Wakes every link that has room."""
        for link in self._links.values():
            if link.has_room:
                link.wake()

    def recall_all(self) -> None:
        """Asks all workers for what they have not started."""
        for link in self._links.values():
            link.recall()

    def forget(self, definition: int) -> None:
        """Lets all workers forget a definition."""
        for link in self._links.values():
            link.forgotten.append(definition)

    def close(self) -> None:
        """Closes all links."""
        for link in self._links.values():
            link.close()
