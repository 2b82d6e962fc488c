"""``stratagem island-server``: the server with which islands average their parameters."""

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
Runs the island server. Islands are groups of workers that average their parameters every N steps
(sg.distribute.experimental.LocalUpdates). 'stratagem run --islands N' runs its own server; start one if the
islands are jobs of a scheduler or run on several hosts. It can be restarted while islands train.
"""


def add_command(commands: _Commands) -> None:
    """Adds ``island-server`` to the commands."""
    parser = commands.add_parser(
        "island-server",
        help="run the server with which islands average their parameters",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument("--islands", type=int, required=True, metavar="N", help="number of islands")
    parser.add_argument(
        "--address",
        required=True,
        metavar="HOST:PORT",
        help="address to listen on; the tasks of islands need it as STRATAGEM_ISLANDS_SERVER",
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
        log(f"the server of {options.islands} islands listens on {server.address}")
        while not ended.wait(1.0) and not server.wait(0.0):
            continue
    finally:
        server.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
