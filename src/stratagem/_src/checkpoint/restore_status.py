"""``RestoreStatus``: what ``Checkpoint.restore`` has restored, and left."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["RestoreStatus"]


class RestoreStatus:
    """What ``Checkpoint.restore`` returns, with the methods that programs for TensorFlow call on it.

    Everything in the ``Checkpoint`` has been restored, or ``restore`` would have raised; unless there
    was nothing to restore from.

    Args:
        left: Names of what the checkpoint has and nothing asked for; ``None`` if there was no checkpoint.
    """

    def __init__(self, left: Sequence[str] | None) -> None:
        self._left = left

    def assert_consumed(self) -> RestoreStatus:
        """Checks that all that the checkpoint has was restored, and returns the status.

        Raises:
            AssertionError: If not, or if there was no checkpoint.
        """
        self.assert_existing_objects_matched()
        if self._left:
            raise AssertionError(
                f"The checkpoint has {list(self._left)}, which nothing here asks for. Give the Checkpoint "
                "all that was saved, or call expect_partial()."
            )
        return self

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Checks that there was a checkpoint, and returns the status.

        Raises:
            AssertionError: If not.
        """
        if self._left is None:
            raise AssertionError(
                "There was no checkpoint to restore: restore(None) leaves everything as it is. Give it "
                "the path that save() has returned."
            )
        return self

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Same as ``assert_existing_objects_matched``."""
        return self.assert_existing_objects_matched()

    def expect_partial(self) -> RestoreStatus:
        """Returns the status: of what a checkpoint has beyond what is asked for nobody is warned."""
        return self
