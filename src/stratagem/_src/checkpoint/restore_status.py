"""``RestoreStatus``: the result of ``Checkpoint.restore``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

__all__ = ["RestoreStatus"]


class RestoreStatus:
    """The result of ``Checkpoint.restore``, with the methods of TensorFlow's status objects.

    All objects of the ``Checkpoint`` are restored, or ``restore`` would have raised, unless there was no
    checkpoint. Variables that do not exist yet are restored when they are created.

    Args:
        unused: Names in the checkpoint that no object matched; ``None`` if there was no checkpoint.
        deferred: By the name of each object that was not built, the names in the checkpoint that wait for
            variables of it; empty once they are restored.
    """

    def __init__(
        self, unused: Sequence[str] | None, deferred: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self._unused = unused
        self._deferred = deferred or {}

    def assert_consumed(self) -> RestoreStatus:
        """Checks that everything in the checkpoint is restored by now, and returns the status.

        Raises:
            AssertionError: If not, or if there was no checkpoint. It passes later if all that was missing
                were variables that did not exist yet.
        """
        self.assert_existing_objects_matched()
        if self._unused:
            raise AssertionError(
                f"The checkpoint has {list(self._unused)}, which no object here matches. Pass all objects "
                "that were saved to the Checkpoint, or call expect_partial()."
            )
        waiting = {name: sorted(names) for name, names in self._deferred.items() if names}
        if waiting:
            shown = "; ".join(f"{name!r}: {names}" for name, names in waiting.items())
            raise AssertionError(
                "Some variables do not exist yet and are restored when their objects are built, on the "
                f"first call or step: {shown}. Call assert_consumed() after that, or build the objects "
                "before restore(); assert_existing_objects_matched() passes now."
            )
        return self

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Checks that there was a checkpoint, and returns the status.

        Raises:
            AssertionError: If not.
        """
        if self._unused is None:
            raise AssertionError(
                "There was no checkpoint to restore: restore(None) changes nothing. Pass the path that "
                "save() returned."
            )
        return self

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Same as ``assert_existing_objects_matched``."""
        return self.assert_existing_objects_matched()

    def expect_partial(self) -> RestoreStatus:
        """Returns the status. Unused parts of a checkpoint cause no warning that it could suppress."""
        return self
