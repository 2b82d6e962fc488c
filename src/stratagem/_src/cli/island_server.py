"""``stratagem island-server``: where the islands of several launchers meet."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_command"]

_DESCRIPTION = """\
Runs the server of islands, groups of workers that average their parameters every so many steps
(sg.distribute.experimental.LocalUpdates). 'stratagem run --islands N' has one of its own; start it where
islands are jobs of a scheduler or on several hosts. It may be started again while islands train.
"""


def add_command(commands: _Commands) -> None:
    """Adds ``island-server`` to the commands."""
    parser = commands.add_parser(
        "island-server",
        help="run the server where islands average their parameters",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--islands", type=int, required=True, metavar="N", help="how many there are"
    )
    parser.add_argument(
        "--address",
        required=True,
        metavar="HOST:PORT",
        help="where it listens, which is STRATAGEM_ISLANDS_SERVER for the tasks of islands",
    )
    parser.set_defaults(command=_serve)


def _serve(options: argparse.Namespace) -> int:
    from stratagem._src.control_plane.island_server.island_messages import island_credentials
    from stratagem._src.control_plane.island_server.island_server import IslandServer

    def log(text: str) -> None:
        print(f"stratagem: {text}", file=sys.stderr, flush=True)

    server = IslandServer(options.address, options.islands, island_credentials(), log)
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        server.start()
        log(f"the server of {options.islands} islands listens at {server.address}")
        while not ended.wait(1.0) and not server.wait(0.0):
            continue
    finally:
        server.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
