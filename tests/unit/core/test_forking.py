"""Forks with real children: what is the parent's is dead there, says so, and does not hold the child up.

In processes of their own: pytest's has threads of JAX, which warns of every fork.
"""

from __future__ import annotations

import subprocess
import sys

PRELUDE = """
import atexit, contextlib, gc, json, os, signal, sys, threading, time
import stratagem as sg

def ended(child):
    deadline = time.monotonic() + 20
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.01)

def in_child(check):
    # Returns normally only if the check does.
    child = os.fork()
    if child == 0:
        try:
            check()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    assert ended(child) == 0, check

def refused(use, *words):
    try:
        use()
    except sg.errors.ContextError as error:
        assert all(word in str(error) for word in (*words, "forked child", "spawn")), error
        return
    raise AssertionError(f"{use} was not refused")
"""


def run(program):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_functions_for_exit_are_the_parents_and_the_childs_own_run():
    out = run("""
from stratagem._src.process.fork import ProcessOwner, at_exit, close_in_child
from stratagem._src.process.hard_exit import after_all_exit_functions
at_exit(print, "exit of the parent")
after_all_exit_functions(lambda: print("very end of the parent", flush=True))
owner = ProcessOwner("a thing")
ended_things = []
class Thing: pass
thing, gone = Thing(), Thing()
for one in (thing, gone):
    close_in_child(one, lambda one: ended_things.append(one))
del one, gone
for how in ("exit", "raise", "grandchild"):
    child = os.fork()
    if child == 0:
        assert ended_things == [thing] and not owner.is_here
        refused(owner.check, "a thing")
        at_exit(print, "exit of the child", how)
        if how == "raise": raise ValueError("of the child")
        if how == "grandchild":
            grandchild = os.fork()
            if grandchild == 0: sys.exit(5)
            sys.exit(ended(grandchild))
        sys.exit(3)
    assert ended(child) == {"exit": 3, "raise": 1, "grandchild": 5}[how]
assert owner.is_here and not ended_things
""")
    lines = out.splitlines()
    assert lines[:2] == ["exit of the child exit", "exit of the child raise"]
    assert lines[2:] == [
        "exit of the child grandchild",
        "exit of the parent",
        "very end of the parent",
    ]


def test_connections_are_the_parents():
    run("""
import socket
from stratagem._src.transport import TransportClient, Credentials, TransportServer, Identity, Message
from stratagem._src.transport.connecting import connect
credentials = Credentials(secret="correct horse battery staple")
server, client = Identity.of_task("ps", 0), Identity("coordinator")
endpoint = TransportServer("127.0.0.1:0", {"echo": lambda message: message}, credentials, server)
endpoint.start()
caller = TransportClient(endpoint.address, credentials, wanted=server, own=client)
call = lambda: caller.call("echo", Message(b"hello"), timeout=10).body
assert call() == b"hello"
(connection,) = caller._idle
sent, send = [], type(connection._stream).send
type(connection._stream).send = lambda self, *args: sent.append(args) or send(self, *args)
# As other threads hold them when the process forks.
locks = [caller._lock, connection._sending, connection._receiving, endpoint._listener._lock]

def use():
    refused(call, "the connection to", "ps")
    refused(lambda: connection.send(1, "echo", Message(b"A" * 64), None))
    refused(lambda: connection.receive(None))
    refused(lambda: connection._writer.cipher.encrypt(b"A" * 64))
    refused(lambda: connection._reader.cipher.decrypt(b"A" * 64))
    refused(lambda: endpoint.wait(1))
    assert not sent
    # Neither closing nor collecting ends anything for the parent, nor waits.
    connection.interrupt(); connection.close(); caller.close(); endpoint.shutdown()
    gc.collect()
    assert connection._stream._socket.fileno() == -1
    assert [listening.fileno() for listening in endpoint._listener._listening] == [-1]

for lock in locks: lock.acquire()
in_child(use)
for lock in locks: lock.release()
assert call() == b"hello" and caller._idle == [connection]
# The child's own connection works.
def call_anew():
    own = TransportClient(endpoint.address, credentials, wanted=server, own=client)
    assert own.call("echo", Message(b"new"), timeout=10).body == b"new"
    own.close()
in_child(call_anew)
assert call() == b"hello"
# The port is free as soon as the parent lets go of it, whether or not a child lives.
held, hold = os.pipe()
child = os.fork()
if child == 0:
    os.close(hold); os.read(held, 1); os._exit(0)
caller.close(); endpoint.shutdown()
host, port = endpoint.address.rsplit(":", 1)
socket.create_server((host, int(port))).close()
os.close(hold)
assert ended(child) == 0
""")


def test_what_has_threads_or_files_is_the_parents(tmp_path):
    run(f"""
import numpy as np
from pathlib import Path
from stratagem.data import Dataset, TensorSpec
from stratagem.io import TFRecordWriter
folder = Path({str(tmp_path)!r})
words = [f"record {{i}}".encode() * 1000 for i in range(200)]
with TFRecordWriter(str(folder / "records")) as writer:
    for word in words: writer.write(word)

def elements():
    for i in range(1000): yield i
slow = Dataset.from_generator(elements, output_signature=TensorSpec((), np.int32))
makers = {{
    "prefetch": lambda: slow.prefetch(4),
    "parallel map": lambda: slow.map(lambda x: x + int(1), num_parallel_calls=2),
    "file": lambda: Dataset.list_files(str(folder / "records")).interleave(
        lambda name: sg.data.TFRecordDataset(name)),
    "cache": lambda: slow.take(50).cache(str(folder / "cache")),
}}
iterators = {{name: iter(make()) for name, make in makers.items()}}
first = {{name: next(iterator) for name, iterator in iterators.items()}}
strategy = sg.distribute.OneDeviceStrategy("CPU:0")
distributed = iter(strategy.experimental_distribute_dataset(Dataset.range(1000).batch(2)))
next(distributed)
unfinished = TFRecordWriter(str(folder / "unfinished"))
unfinished.write(b"once")
writer = sg.summary.create_file_writer(str(folder / "logs"))
writer.set_as_default()
sg.summary.scalar("loss", 1.0, step=1)
from stratagem._src.process.signal_queue import SignalQueue
notices = SignalQueue([signal.SIGUSR2])

def use():
    for name, iterator in iterators.items():
        refused(lambda: next(iterator), "a dataset's iterator")
    refused(lambda: next(distributed), "a distributed dataset's iterator")
    refused(lambda: unfinished.write(b"twice"), "TFRecordWriter")
    refused(lambda: sg.summary.scalar("loss", 2.0, step=2), "summary writer")
    for iterator in iterators.values(): iterator.close()
    distributed.close()
    unfinished.close()
    writer.close()
    notices.close()
    # Datasets themselves are plans, which any process may read.
    assert [int(x) for x in slow.take(3).prefetch(2)] == [0, 1, 2]

in_child(use)
# What is in memory at the fork is not written by a child that ends as the interpreter ends.
child = os.fork()
if child == 0: sys.exit(7)
assert ended(child) == 7
# A signal that the parent watches ends the child, as multiprocessing's terminate() must.
reader, ready = os.pipe()
child = os.fork()
if child == 0:
    os.write(ready, b"x")
    while True: time.sleep(0.01)
os.read(reader, 1)  # Python drops what comes before
os.kill(child, signal.SIGUSR2)
assert ended(child) == -signal.SIGUSR2

rest = {{name: [*iterator] for name, iterator in iterators.items()}}
assert len(rest["prefetch"]) == len(rest["parallel map"]) == 999
assert [first["file"], *rest["file"]] == words
assert [int(x) for x in makers["cache"]()] == [*range(50)]
assert len([*distributed]) == 499
unfinished.write(b"more")
unfinished.close()
assert [bytes(x) for x in sg.data.TFRecordDataset(str(folder / "unfinished"))] == [b"once", b"more"]
sg.summary.scalar("loss", 3.0, step=3)
writer.close()
(events,) = (folder / "logs").iterdir()
from stratagem._src.data.tfrecord.record_format import TFRecordReader
assert len([*TFRecordReader(str(events))]) == 3, "the version, and two summaries"
""")


def test_saves_are_the_parents(tmp_path):
    run(f"""
from pathlib import Path
from stratagem._src.checkpoint.async_save import AsyncSave, wait_for_saves
may_end = threading.Event()
save = AsyncSave(Path({str(tmp_path / "checkpoint")!r}), may_end.wait, lambda: None, lambda: False)
save.start()

def use():
    refused(save.wait, "the save of the checkpoint")
    wait_for_saves()

in_child(use)
child = os.fork()
if child == 0: sys.exit(0)
assert ended(child) == 0
may_end.set()
save.wait()
""")


def test_the_coordinator_and_its_variables_are_the_parents():
    run("""
sg.config.set_num_cpu_devices(1)
servers = [sg.distribute.Server({j: {i: "127.0.0.1:0"}}, j, i) for j, i in (("worker", 0), ("ps", 0))]
worker, ps = (server.target.removeprefix("grpc://") for server in servers)
spec = sg.train.ClusterSpec({"worker": [worker], "ps": [ps]})
resolver = sg.distribute.cluster_resolver.SimpleClusterResolver(spec)
strategy = sg.distribute.ParameterServerStrategy(resolver)
coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    v = sg.Variable([1.0, 2.0])
value = coordinator.schedule(lambda: 3)
assert value.fetch() == 3

def use():
    refused(v.numpy, "the connection to", "ps")
    refused(lambda: v.assign([3.0, 4.0]), "ps")
    for call in (coordinator.join, coordinator.done, value.fetch, lambda: coordinator.schedule(int)):
        refused(call, "the coordinator")

in_child(use)
child = os.fork()
if child == 0:
    del v, value
    gc.collect()
    sys.exit(0)
assert ended(child) == 0
assert v.numpy().tolist() == [1.0, 2.0]
assert coordinator.schedule(lambda: 4).fetch() == 4
coordinator.join()
""")


def test_loaders_that_fork_are_harmless():
    run("""
import multiprocessing, subprocess
import numpy as np
sg.config.set_num_cpu_devices(2)
strategy = sg.distribute.MirroredStrategy()
with strategy.scope():
    v = sg.Variable(0.0, aggregation=sg.VariableAggregation.MEAN)

@sg.function
def step(x):
    strategy.run(lambda: v.assign_add(x))
    return v.read_value()

def load(number):
    return np.full(4, number).sum()

def loader(queue, numbers):
    for number in numbers: queue.put(load(number))

step(1.0)
context = multiprocessing.get_context("fork")
for _ in range(3):
    with context.Pool(2) as pool:
        assert pool.map(load, range(8)) == [4 * number for number in range(8)]
    queue = context.Queue()
    workers = [context.Process(target=loader, args=(queue, range(4))) for _ in range(2)]
    for worker in workers: worker.start()
    assert sorted(queue.get(timeout=20) for _ in range(8)) == sorted([*range(0, 16, 4)] * 2)
    for worker in workers: worker.join(20)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n"
    for how, code in (("exit", 3), ("raise", 1), ("return", 0), ("_exit", 4)):
        child = os.fork()
        if child == 0:
            atexit.register(lambda: print("handler", flush=True))
            if how == "exit": sys.exit(3)
            if how == "raise": raise ValueError
            if how == "_exit": os._exit(4)
            break
        assert ended(child) == code, how
    else:
        step(1.0)
        continue
    break
else:
    assert float(step(1.0)) == 5.0
""")
