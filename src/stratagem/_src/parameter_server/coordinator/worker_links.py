"""``WorkerLinks``: the links to all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stratagem._src.parameter_server.coordinator.worker_link import WorkerLink

__all__ = ["WorkerLinks"]


class WorkerLinks(Mapping[int, WorkerLink]):
    """The link to each worker, by its index."""

    def __init__(self) -> None:
        # Copy-on-write: replaced, never mutated, because it is also read without the coordinator's lock.
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
        """Updates the workers' addresses, and returns links to new workers; with the coordinator's lock.

        Args:
            addresses: The addresses by index. A worker that is missing here stays known.
            make: Creates a link from a worker's index and address.
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
        """Wakes the least loaded link that has room, among some workers or all."""
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
        """Recalls closures that have not started from all workers."""
        for link in self._links.values():
            link.recall()

    def forget(self, definition: int) -> None:
        """Tells all workers to drop a definition."""
        for link in self._links.values():
            link.forgotten.append(definition)

    def close(self) -> None:
        """Closes all links."""
        for link in self._links.values():
            link.close()
