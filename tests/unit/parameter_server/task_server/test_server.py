"""``Server``: what it is given, and how it starts and ends."""

import subprocess
import sys
import threading

import pytest

import stratagem as sg
from stratagem._src.cluster.errors import TaskError
from stratagem._src.core.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem._src.transport import Credentials, Identity, Message, TransportClient

CLUSTER = {"worker": ["127.0.0.1:0", "127.0.0.1:0"], "ps": ["127.0.0.1:0"]}
PS, TESTER = Identity.of_task("ps", 0), Identity("tester")


def address(server):
    return server.target.split("://")[1]


@pytest.mark.parametrize(
    "cluster",
    [CLUSTER, sg.train.ClusterSpec(CLUSTER), sg.train.ClusterSpec(CLUSTER).as_cluster_def()],
    ids=["dictionary", "ClusterSpec", "ClusterDef"],
)
def test_a_task_of_a_cluster(serve, cluster):
    server = serve(cluster, job_name="worker", task_index=1)
    definition = server.server_def
    assert (definition.job_name, definition.task_index, definition.protocol) == (
        "worker",
        1,
        "grpc",
    )
    assert definition.cluster == sg.train.ClusterSpec(CLUSTER).as_cluster_def()
    assert server.target.startswith("grpc://127.0.0.1:")
    assert not server.target.endswith(":0")


def test_a_server_def_gives_what_is_not_said(serve):
    definition = sg.train.ServerDef(sg.train.ClusterSpec(CLUSTER).as_cluster_def(), "worker", 1)
    assert serve(definition, start=False).server_def == definition
    assert serve(definition, task_index=0, start=False).server_def.task_index == 0


def test_the_only_task_of_the_only_job_need_not_be_named(serve):
    definition = serve({"ps": {3: "127.0.0.1:0"}}).server_def
    assert (definition.job_name, definition.task_index) == ("ps", 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TaskError, r"job_name must be given .* \['worker', 'ps'\]"),
        ({"job_name": "worker"}, TaskError, r"task_index must be given .* \[0, 1\]"),
        ({"job_name": "chef"}, TaskError, "got 'chef'"),
        ({"job_name": "ps", "task_index": 7}, TaskError, "got 7"),
        (
            {"job_name": "ps", "protocol": "grpc+verbs"},
            InvalidArgumentError,
            r"one of \['grpc', 'grpc\+tls'\], got 'grpc\+verbs'",
        ),
        ({"job_name": "ps", "protocol": "grpc+tls"}, InvalidArgumentError, "needs certificates"),
        (
            {"job_name": "ps", "config": object()},
            InvalidArgumentError,
            "config must be None or a ConfigProto",
        ),
    ],
)
def test_what_does_not_fit_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        sg.distribute.Server(CLUSTER, **arguments)


def test_settings_of_tensorflow_s_runtime_are_taken(serve):
    config = sg.compat.v1.ConfigProto(allow_soft_placement=True)
    config.inter_op_parallelism_threads = 4
    assert serve(CLUSTER, "ps", config=config, start=False).server_def.job_name == "ps"
    with pytest.raises(AttributeError):
        config.inter_op_threads = 4


def test_a_server_starts_once(serve):
    server = serve(CLUSTER, "ps", start=False)
    with pytest.raises(TaskError, match="must be started before join"):
        server.join()
    server.start()
    with pytest.raises(TaskError, match="was started before"):
        server.start()


def test_join_blocks_until_shutdown(serve):
    server = serve(CLUSTER, "ps")
    joined = threading.Thread(target=server.join)
    joined.start()
    joined.join(0.1)
    assert joined.is_alive()
    server.shutdown()
    joined.join(10)
    assert not joined.is_alive()


def test_a_port_in_use(serve):
    server = serve(CLUSTER, "ps")
    with pytest.raises(UnavailableError, match="must be free"):
        serve({"ps": [address(server)]})


def test_a_local_server_is_a_cluster_of_its_own():
    server = sg.distribute.Server.create_local_server()
    try:
        assert server.server_def.job_name == "local"
        assert server.server_def.cluster.job[0].tasks == {0: "localhost:0"}
        assert server.target.startswith("grpc://localhost:")
    finally:
        server.shutdown()


def test_without_a_secret_other_machines_are_kept_out():
    with pytest.raises(PermissionDeniedError, match="STRATAGEM_CLUSTER_SECRET"):
        sg.distribute.Server({"ps": ["ps0.example.com:0"]})


def test_the_secret_of_the_environment_is_demanded(serve, monkeypatch):
    monkeypatch.setenv("STRATAGEM_CLUSTER_SECRET", "correct horse battery staple")
    server = serve(CLUSTER, "ps")
    for credentials in (Credentials(), Credentials(secret="wrong donkey battery staple")):
        caller = TransportClient(address(server), credentials, wanted=PS, own=TESTER)
        with pytest.raises(UnauthenticatedError):
            caller.call("ps/ping", Message(), timeout=10)
    caller = TransportClient(address(server), Credentials.from_environment(), wanted=PS, own=TESTER)
    caller.call("ps/ping", Message(), timeout=10)
    caller.close()


def test_an_interrupt_ends_join():
    program = (
        "import os, signal, threading\n"
        "import stratagem as sg\n"
        "server = sg.distribute.Server.create_local_server()\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "server.join()\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "KeyboardInterrupt" in process.stderr
    assert process.returncode != 0
