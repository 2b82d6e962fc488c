"""``stratagem doctor`` and reaching the other tasks."""

import json
import os
import re
import socket
import threading

import pytest

from stratagem._src.cli import main, scheduler_report
from stratagem._src.cli.peers import reach_peers
from stratagem._src.cluster import Task
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.core.errors import PermissionDeniedError

W0, W1 = Task("worker", 0), Task("worker", 1)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for variable in ("TF_CONFIG", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(variable, raising=False)


def test_alone_all_is_well(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"versions: stratagem .*, jax \d", said)
    assert "devices: 8 cpu (cpu)" in said
    assert re.search(r"all-reduce of 4 MB between the devices in [\d.]+ ms", said)
    assert "cluster: none, because neither TF_CONFIG" in said
    assert said.endswith("verdict: all is well\n")


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_every_scheduler_is_told_of(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "KUBE", "RAY_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    installed = {}
    monkeypatch.setattr(scheduler_report.importlib.util, "find_spec", installed.get)
    names = "Slurm (sbatch), Kubernetes (KUBECONFIG), Ray (pip install 'ray[data]>=2.40'), mpirun"
    assert list(scheduler_report.scheduler_report()) == [f"not found: {names}, torchrun"]
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").touch()
    program(tmp_path, "sbatch", "")
    program(tmp_path, "scontrol", "echo Slurmctld is DOWN")
    program(tmp_path, "mpirun", "")
    installed["ray"] = "here"
    slurm, kubernetes, ray, mpirun, others = scheduler_report.scheduler_report()
    assert slurm.startswith("Slurm: installed, but the controller does not respond (Slurmctld is D")
    assert kubernetes.endswith("--image ...' needs pip install 'kubernetes>=30'")
    assert ray == "Ray: no RAY_ADDRESS, so one is started; 'stratagem run --on ray'"
    assert mpirun.startswith(f"mpirun: {tmp_path}/mpirun; starts synchronous workers directly")
    assert others == "not found: torchrun"
    program(tmp_path, "scontrol", "echo Slurmctld is UP")
    assert "'stratagem run --on slurm' submits" in next(scheduler_report.scheduler_report())


def test_task_that_does_not_answer_is_a_problem(monkeypatch, capsys):
    with ReservedPorts(2) as ports, socket.create_server(("127.0.0.1", 0)) as alive:
        own, dead = (f"127.0.0.1:{port}" for port in ports)
        workers = [own, dead, f"127.0.0.1:{alive.getsockname()[1]}"]
        task = {"type": "worker", "index": 0}
        config = json.dumps({"cluster": {"worker": workers}, "task": task})
        monkeypatch.setenv("TF_CONFIG", config)
        assert main(["doctor", "--timeout", "0.5"]) == 1
    said = capsys.readouterr().out
    assert f"this is worker 0, process 0 of 3; coordinator {own}" in said
    assert f"worker 1 at {dead}: does not respond" in said
    assert f"worker 2 at {workers[2]}: responds" in said
    assert said.endswith("verdict: 1 problem: cannot reach worker 1\n")


def test_malformed_cluster_is_a_problem(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{")
    assert main(["doctor"]) == 1
    assert "verdict: 1 problem: TF_CONFIG must hold JSON" in capsys.readouterr().out


def test_two_that_look_for_each_other_find_each_other():
    with ReservedPorts(2) as ports:
        first, second = (f"127.0.0.1:{port}" for port in ports)
        found = {}
        other = threading.Thread(
            target=lambda: found.update(reach_peers(second, {W0: first}, timeout=10))
        )
        other.start()
        found.update(reach_peers(first, {W1: second}, timeout=10))
        other.join()
    assert found == {W0: "", W1: ""}


def test_nothing_listens_for_other_machines_without_a_secret(monkeypatch):
    for variable in ("STRATAGEM_CLUSTER_SECRET", "STRATAGEM_CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(PermissionDeniedError, match="loopback"):
        reach_peers("worker0.example.com:4321", {W1: "127.0.0.1:1"}, timeout=0.1)


def test_what_commands_and_errors_say_does_not_command_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", "\x1b]0;owned\x07")
    monkeypatch.setattr(scheduler_report.importlib.util, "find_spec", {"ray": "here"}.get)
    main(["doctor"])
    main(["top", "\x1b]0;owned\x07 x"])
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert "\x1b" not in text
        assert r"\x1b]0;owned\x07" in text
