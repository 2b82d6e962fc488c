"""A process between clients and servers, which holds back what goes through when it is told to.

Arguments: pairs of ports, "from:to". Reads lines "pause INDEX" and "resume INDEX" from its input, and ends
with it.
"""

import asyncio
import contextlib
import sys

_CHUNK = 1 << 16


class Relay:
    """Passes bytes between one port and another, both on loopback."""

    def __init__(self, listen_port, target_port):
        self.may_pass = asyncio.Event()
        self.may_pass.set()
        self._listen_port, self._target_port = listen_port, target_port

    async def start(self):
        """Begins to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._listen_port)

    async def _serve(self, reader, writer):
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        ways = [asyncio.create_task(self._pass(*way)) for way in ((reader, back), (there, writer))]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()
        back.close()

    async def _pass(self, source, destination):
        while chunk := await source.read(_CHUNK):
            await self.may_pass.wait()
            destination.write(chunk)
            await destination.drain()


async def main():
    relays = [Relay(*map(int, pair.split(":"))) for pair in sys.argv[1:]]
    for relay in relays:
        await relay.start()
    print("ready", flush=True)
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := (await orders.readline()).decode().split():
        order, index = line
        may_pass = relays[int(index)].may_pass
        may_pass.clear() if order == "pause" else may_pass.set()


asyncio.run(main())
