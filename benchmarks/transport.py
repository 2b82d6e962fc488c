"""RPCs between two processes: our transport against Arrow Flight, both with a secret.

Beside it, what protection costs: the same without encryption (which only this benchmark can have), and with
TLS. The servers run in a process of their own. Rounds of all sides are interleaved; medians are shown.
Flight, which does not encrypt here, carries small messages in actions and arrays in record batches, the
fastest ways it has.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import ipaddress
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pyarrow import flight

from stratagem._src.transport import (
    Connection,
    Credentials,
    Identity,
    Message,
    TLSFiles,
    TransportClient,
    TransportServer,
)

SECRET = "correct horse battery staple"
ARRAY = np.arange(25_000_000 // 4, dtype=np.float32)
SCHEMA = pa.schema([("array", pa.large_binary())])
BODY = bytes(100)
NUM_THREADS = 4
SERVER, CLIENT = Identity.of_task("ps", 0), Identity("benchmark")
PROTECTED, UNPROTECTED, TLS = "stratagem", "unprotected", "tls"


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


def make_certificate(directory: Path) -> TLSFiles:
    """Returns files of a task that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, encoding = directory / "task.pem", serialization.Encoding.PEM
    pem.write_bytes(certificate.public_bytes(encoding))
    key_file = directory / "task.key"
    key_file.write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return TLSFiles(str(pem), str(pem), str(key_file))


def credentials_of(side: str, tls: TLSFiles) -> Credentials:
    return Credentials(secret=SECRET, tls=tls if side == TLS else None)


@contextlib.contextmanager
def protection(side: str) -> Iterator[None]:
    """Connections that are made meanwhile go without encryption, if the side says so."""
    protect = Connection.protect
    if side == UNPROTECTED:
        Connection.protect = lambda *keys, **named: None  # type: ignore[assignment]
    try:
        yield
    finally:
        Connection.protect = protect  # type: ignore[method-assign]


def serve(pipe: Pipe, side: str, tls: TLSFiles) -> None:
    handlers = {
        "echo": lambda message: message,
        "pull": lambda message: Message(arrays=(ARRAY,)),
        "push": lambda message: Message(),
    }
    with protection(side):
        endpoint = TransportServer("127.0.0.1:0", handlers, credentials_of(side, tls), SERVER)
        endpoint.start()
        server = _FlightServer("grpc://127.0.0.1:0", middleware={"secret": _CheckSecret()})
        pipe.send((endpoint.address, server.port))
        pipe.recv()


def stratagem_calls(address: str, credentials: Credentials) -> dict[str, Callable[[], Any]]:
    caller = TransportClient(address, credentials, wanted=SERVER, own=CLIENT)
    return {
        "echo": lambda: caller.call("echo", Message(BODY), timeout=60),
        "pull": lambda: caller.call("pull", Message(), timeout=60).arrays[0],
        "push": lambda: caller.call("push", Message(arrays=(ARRAY,)), timeout=60),
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
    pipes: list[Pipe] = []
    processes = []
    sides: dict[str, dict[str, Callable[[], Any]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        tls = make_certificate(Path(directory))
        for side in (PROTECTED, UNPROTECTED, TLS):
            here, there = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=serve, args=(there, side, tls)
            )
            process.start()
            address, port = here.recv()
            sides[side] = stratagem_calls(address, credentials_of(side, tls))
            pipes.append(here)
            processes.append(process)
        sides["flight"] = flight_calls(port)
        measure_all(sides, flags.rounds)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send("end")
        process.join(10)
        process.kill()


def measure_all(sides: dict[str, dict[str, Callable[[], Any]]], rounds: int) -> None:
    rows: dict[str, Callable[[dict[str, Any]], float]] = {
        "round trip, ms": lambda calls: milliseconds(calls["echo"], 300),
        f"calls/s, {NUM_THREADS} threads": lambda calls: calls_per_second(calls["echo"], 1200),
        "pull 25 MB, ms": lambda calls: milliseconds(calls["pull"], 5),
        "push 25 MB, ms": lambda calls: milliseconds(calls["push"], 5),
    }
    print(f"{'':20}", *(f"{side:>11}" for side in sides))
    for name, measure in rows.items():
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, calls in sides.items():
                with protection(side):
                    times[side].append(measure(calls))
        medians = (statistics.median(each) for each in times.values())
        print(f"{name:20}", *(f"{median:11.3f}" for median in medians), flush=True)


if __name__ == "__main__":
    main()
