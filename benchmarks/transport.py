"""Calls between two processes: stratagem's transport against Arrow Flight, both with a secret.

The server runs in a process of its own. Rounds of the two sides are interleaved; medians are shown.
Flight carries small messages in actions and arrays in record batches, the fastest ways it has.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from stratagem.cluster.transport import Channel, Credentials, Endpoint, Message

SECRET = "correct horse battery staple"
ARRAY = np.arange(25_000_000 // 4, dtype=np.float32)
SCHEMA = pa.schema([("array", pa.large_binary())])
BODY = bytes(100)
NUM_THREADS = 4


def as_batch(array: np.ndarray) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, array.nbytes], np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(array)])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA)


def from_batch(batch: pa.RecordBatch) -> np.ndarray:
    return np.frombuffer(batch.column(0).buffers()[2], np.float32)


class _CheckSecret(flight.ServerMiddlewareFactory):
    def start_call(self, info: Any, headers: Any) -> None:
        if headers.get("secret") != [SECRET]:
            raise flight.FlightUnauthenticatedError("wrong secret")


class _SendSecret(flight.ClientMiddlewareFactory):
    class _Middleware(flight.ClientMiddleware):
        def sending_headers(self) -> dict[str, str]:
            return {"secret": SECRET}

    def start_call(self, info: Any) -> Any:
        return self._Middleware()


class _FlightServer(flight.FlightServerBase):
    def do_action(self, context: Any, action: flight.Action) -> Iterator[Any]:
        yield action.body

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(
            pa.RecordBatchReader.from_batches(SCHEMA, [as_batch(ARRAY)])
        )

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        from_batch(reader.read_chunk().data)
        writer.write(pa.py_buffer(b"done"))


def serve(pipe: Connection) -> None:
    endpoint = Endpoint(
        "127.0.0.1:0",
        {
            "echo": lambda message: message,
            "pull": lambda message: Message(arrays=(ARRAY,)),
            "push": lambda message: Message(),
        },
        Credentials(secret=SECRET),
    )
    endpoint.start()
    server = _FlightServer("grpc://127.0.0.1:0", middleware={"secret": _CheckSecret()})
    pipe.send((endpoint.address, server.port))
    pipe.recv()


def stratagem_calls(address: str) -> dict[str, Callable[[], Any]]:
    channel = Channel(address, Credentials(secret=SECRET))
    return {
        "echo": lambda: channel.call("echo", Message(BODY), timeout=60),
        "pull": lambda: channel.call("pull", Message(), timeout=60).arrays[0],
        "push": lambda: channel.call("push", Message(arrays=(ARRAY,)), timeout=60),
    }


def flight_calls(port: int) -> dict[str, Callable[[], Any]]:
    client = flight.connect(f"grpc://127.0.0.1:{port}", middleware=[_SendSecret()])
    options = flight.FlightCallOptions(timeout=60)

    def push() -> None:
        descriptor = flight.FlightDescriptor.for_command(b"push")
        writer, reader = client.do_put(descriptor, SCHEMA, options)
        writer.write_batch(as_batch(ARRAY))
        writer.done_writing()
        reader.read()
        writer.close()

    return {
        "echo": lambda: list(client.do_action(flight.Action("echo", BODY), options)),
        "pull": lambda: from_batch(
            client.do_get(flight.Ticket(b"pull"), options).read_chunk().data
        ),
        "push": push,
    }


def milliseconds(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e3


def calls_per_second(call: Callable[[], Any], count: int) -> float:
    threads = [
        threading.Thread(target=milliseconds, args=(call, count // NUM_THREADS))
        for _ in range(NUM_THREADS)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,))
    server.start()
    address, port = here.recv()
    sides = {"stratagem": stratagem_calls(address), "flight": flight_calls(port)}
    rows: dict[str, Callable[[dict[str, Any]], float]] = {
        "round trip, ms": lambda calls: milliseconds(calls["echo"], 300),
        f"calls/s, {NUM_THREADS} threads": lambda calls: calls_per_second(calls["echo"], 1200),
        "pull 25 MB, ms": lambda calls: milliseconds(calls["pull"], 5),
        "push 25 MB, ms": lambda calls: milliseconds(calls["push"], 5),
    }
    print(f"{'':20} {'stratagem':>10} {'flight':>10}")
    for name, measure in rows.items():
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(flags.rounds):
            for side, calls in sides.items():
                times[side].append(measure(calls))
        ours, theirs = (statistics.median(times[side]) for side in sides)
        print(f"{name:20} {ours:10.3f} {theirs:10.3f}", flush=True)
    here.send("end")
    server.join(10)
    server.kill()


if __name__ == "__main__":
    main()
