"""``RestoreStatus``: the result of ``Checkpoint.restore``."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["RestoreStatus"]


class RestoreStatus:
    """The result of ``Checkpoint.restore``, with the methods of TensorFlow's status objects.

    All objects of the ``Checkpoint`` are restored, or ``restore`` would have raised, unless there was no
    checkpoint.

    Args:
        unused: Names in the checkpoint that no object matched; ``None`` if there was no checkpoint.
    """

    def __init__(self, unused: Sequence[str] | None) -> None:
        self._unused = unused

    def assert_consumed(self) -> RestoreStatus:
        """Checks that everything in the checkpoint was restored, and returns the status.

        Raises:
            AssertionError: If not, or if there was no checkpoint.
        """
        self.assert_existing_objects_matched()
        if self._unused:
            raise AssertionError(
                f"The checkpoint has {list(self._unused)}, which no object here matches. Pass all objects "
                "that were saved to the Checkpoint, or call expect_partial()."
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
