"""A real Slurm on this machine: a controller, and several nodes with ports of their own."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "unshare")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CryptoType=crypto/munge
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
InactiveLimit=0
PlugStackConfig={folder}/plugstack.conf
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=30 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
    "RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
)


def why_not():
    """Returns why Slurm cannot be started here, or nothing."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return (
            f"Slurm is not installed ({', '.join(missing)} not found): "
            "apt-get install slurm-wlm munge"
        )
    if os.geteuid() != 0:
        return "Slurm's daemons must be started by root here"
    return ""


class SlurmCluster:
    """Slurm with two nodes, ``sg1`` and ``sg2``, whose names only its own daemons can resolve."""

    names = ("sg1", "sg2")

    def __init__(self, folder):
        self.folder = Path(folder)
        self.daemons = []
        host = socket.gethostname()
        ports = free_ports(1 + len(self.names))
        nodes = "\n".join(
            NODE.format(name=name, host=host, port=port, cpus=8)
            for name, port in zip(self.names, ports[1:], strict=True)
        )
        (self.folder / "state").mkdir()
        (self.folder / "plugstack.conf").touch()
        conf = self.folder / "slurm.conf"
        conf.write_text(CONF.format(folder=folder, host=host, ports=ports, nodes=nodes))
        gpus = [self.folder / f"gpu{number}" for number in range(2)]
        for gpu in gpus:
            gpu.touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")
        hosts = self.folder / "hosts"
        hosts.write_text(
            Path("/etc/hosts").read_text() + "".join(f"127.0.0.1 {name}\n" for name in self.names)
        )
        self.env = {**os.environ, "SLURM_CONF": str(conf)}

    def start(self):
        """Starts the daemons and waits until the nodes are ready for jobs."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.folder.chmod(0o755)  # munge wants its socket to be reached by all
        munge = [
            f"--{what}-file={self.folder}/munge.{what}" for what in ("key", "pid", "log", "seed")
        ]
        self._start(
            "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *munge
        )
        wait_for((self.folder / "munge.socket").exists)
        self.start_controller()
        for name in self.names:
            mount = f"mount --bind {self.folder}/hosts /etc/hosts && exec slurmd -D -N {name}"
            self._start("unshare", "--mount", "sh", "-c", mount)
        wait_for(lambda: self.run("sinfo", "-h", "-o", "%T").strip() == "idle", 60)

    def start_controller(self):
        """Starts the daemon that has the queue."""
        self._controller = self._start("slurmctld", "-D")

    def stop_controller(self):
        """Ends the daemon that has the queue; jobs go on."""
        self.daemons.remove(self._controller)
        _end(self._controller)

    def _start(self, *command):
        log = (self.folder / f"daemon-{len(self.daemons)}.log").open("ab")
        daemon = subprocess.Popen(
            command,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self.daemons.append(daemon)
        return daemon

    def run(self, *command, check=False):
        """Returns what one of Slurm's commands prints."""
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def stop(self):
        """Ends all jobs, and the daemons."""
        self.run("scancel", "--full", "--user=root")
        deadline = time.monotonic() + 20
        while self.run("squeue", "-h").strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(self.daemons):
            _end(daemon)


def _end(daemon):
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    try:
        for some in sockets:
            some.bind(("127.0.0.1", 0))
        return [some.getsockname()[1] for some in sockets]
    finally:
        for some in sockets:
            some.close()


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.1)
    return value
