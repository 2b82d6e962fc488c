"""Which strategy is current, and whether the code runs inside a replica.

A thread has a stack of frames. A strategy's ``scope()`` pushes a cross-replica frame, ``run`` a
replica frame for each replica. With an empty stack the default strategy is current.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from stratagem._src.core.errors import ContextError
from stratagem._src.core.thread_state import THIS_THREAD

if TYPE_CHECKING:
    from stratagem._src.current_strategy.protocols import ReplicaContextProtocol, StrategyProtocol

__all__ = [
    "PROCESS",
    "Frame",
    "Scope",
    "current_frame",
    "default_frame",
    "enter",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "register_default_strategy",
    "require_cross_replica",
]


_Strategy = TypeVar("_Strategy")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Frame:
    """One entry of the stack; ``replica_context`` is ``None`` in cross-replica context."""

    strategy: StrategyProtocol
    replica_context: ReplicaContextProtocol | None


class _Process:
    """Holds the frame of every thread that has entered none; ``None`` until one is first needed."""

    frame: Frame | None = None


PROCESS = _Process()

_default_factory: Callable[[], Frame] | None = None
_default: Frame | None = None


def register_default_strategy(factory: Callable[[], Frame]) -> None:
    """Registers the factory of the frame that is current when no strategy was chosen."""
    global _default_factory
    _default_factory = factory


def default_frame() -> Frame:
    """Returns the frame that is current when no strategy was chosen."""
    global _default
    if _default is None:
        assert _default_factory is not None, "stratagem registers the default strategy"
        _default = _default_factory()
    return _default


def current_frame() -> Frame:
    """Returns the innermost frame of this thread."""
    frames: list[Frame] = THIS_THREAD.state.strategy_frames
    if frames:
        return frames[-1]
    if PROCESS.frame is None:
        PROCESS.frame = default_frame()
    return PROCESS.frame


@contextlib.contextmanager
def enter(frame: Frame) -> Iterator[Frame]:
    """Makes ``frame`` current in this thread for the block."""
    thread = THIS_THREAD.state
    frames = thread.strategy_frames
    depth = len(frames)
    thread.before_enter()
    try:
        frames.append(frame)
        yield frame
    finally:
        # An interrupt can delay this until the generator is collected, when an outer block may already have
        # removed the frame; or it can keep an inner block from removing its own. So cut the stack at the
        # depth of this frame instead of popping the last one.
        if depth < len(frames) and frames[depth] is frame:
            del frames[depth:]
        thread.after_exit()


class Scope(Generic[_Strategy]):
    """Context manager that makes a frame current; it is reusable and reentrant.

    Args:
        strategy: The value that ``with ... as`` binds.
        frame: The strategy's frame.
        check: Called before entering; raises where the scope must not be entered.
    """

    def __init__(self, strategy: _Strategy, frame: Frame, check: Callable[[], None]) -> None:
        self._strategy = strategy
        self._frame = frame
        self._check = check

    def __enter__(self) -> _Strategy:
        self._check()
        thread = THIS_THREAD.state
        thread.before_enter()
        thread.strategy_frames.append(self._frame)
        return self._strategy

    def __exit__(self, *_: object) -> None:
        thread = THIS_THREAD.state
        frames = thread.strategy_frames
        if not frames or frames[-1] is not self._frame:
            raise ContextError(
                f"Scopes must be exited in the reverse order, but this scope of {self._frame.strategy!r} "
                "is not the innermost one of this thread. Use `with strategy.scope():`."
            )
        frames.pop()
        thread.after_exit()


def get_strategy() -> StrategyProtocol:
    """Returns the current strategy; the default one if none was chosen."""
    return current_frame().strategy


def has_strategy() -> bool:
    """Returns whether a strategy other than the default one is current.

    >>> has_strategy()
    False
    """
    return current_frame().strategy is not default_frame().strategy


def get_replica_context() -> ReplicaContextProtocol | None:
    """Returns the current replica's context, or ``None`` in cross-replica context.

    Outside of any strategy it is the default strategy's only replica.
    """
    return current_frame().replica_context


def in_cross_replica_context() -> bool:
    """Returns whether this code runs outside of the replicas rather than inside one.

    >>> in_cross_replica_context()
    False
    """
    return current_frame().replica_context is None


def experimental_set_strategy(strategy: StrategyProtocol | None) -> None:
    """Makes ``strategy`` current for the whole process, without a ``with`` block.

    ``None`` restores the default strategy. For notebooks; prefer ``with strategy.scope():``.

    Raises:
        ContextError: If called inside a strategy's scope or a replica.
    """
    if THIS_THREAD.state.strategy_frames:
        raise ContextError(
            "experimental_set_strategy() cannot be called inside a strategy's scope() or run(). "
            "Leave the `with strategy.scope():` block first."
        )
    if strategy is None or strategy is default_frame().strategy:
        PROCESS.frame = default_frame()
    else:
        PROCESS.frame = Frame(strategy, None)


def require_cross_replica(strategy: StrategyProtocol, caller: str) -> None:
    """Checks that ``strategy.<caller>`` may be called here.

    Raises:
        ContextError: Inside a replica, or inside another strategy's scope.
    """
    frame = current_frame()
    if frame is default_frame():
        return
    if frame.strategy is not strategy:
        raise ContextError(
            f"{caller}() of {strategy!r} was called inside the scope of {frame.strategy!r}. "
            "Strategies cannot be mixed: leave the other scope first."
        )
    if frame.replica_context is not None and strategy is not default_frame().strategy:
        raise ContextError(
            f"{caller}() must be called in cross-replica context, but this is replica context "
            "(inside the function given to strategy.run()). Call it outside of run(), or from a "
            "function given to get_replica_context().merge_call()."
        )
