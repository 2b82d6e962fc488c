"""Several hosts on one machine: network, process and mount namespaces that a test cuts, slows and crashes.

Host K has the name ``hostK``, a boot id, ``/etc/hosts``, ``/tmp`` and ``/dev/shm`` of its own, and two
interfaces: ``eth0`` with 10.77.0.K and fd77::K, and ``eth1`` with 10.78.0.K. A switch, which is one more
network namespace, has a bridge for each of the two networks. No namespace has a name, so all of them end
with the processes that hold them: also when the tests are killed. Nothing outside of them changes.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

_TOOLS = ("ip", "ss", "iptables", "ip6tables", "tc", "unshare", "nsenter", "setpriv")
_OF_HOSTS = ("--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child")
_SECONDS_TO_BOOT = 20.0
_BOOT = """
set -e
mount --make-rprivate /
hostname "$NAME"
mount --bind "$FOLDER/hosts" /etc/hosts
mount --bind "$FOLDER/boot_id" /proc/sys/kernel/random/boot_id
for shared in $SHARED; do
    case $shared in /tmp/*)
        mkdir -p "$FOLDER$shared"
        mount --rbind "$shared" "$FOLDER$shared";;
    esac
done
mount --rbind "$FOLDER/tmp" /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
touch /tmp/.booted
exec sleep infinity
"""


def why_not():
    """Returns why this machine cannot hold several hosts, or an empty string if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "several hosts on one machine need Linux, and root to make namespaces"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"several hosts on one machine need {', '.join(missing)} (iproute2, iptables, util-linux)"
    probe = (
        "ip link add name v type veth peer name w && ip link add name z type bridge && iptables -L"
    )
    tried = subprocess.run(
        ["unshare", "--net", *_OF_HOSTS, "sh", "-c", probe], capture_output=True, text=True
    )
    if tried.returncode != 0:
        return f"this machine refuses namespaces: {tried.stderr.strip()}"
    return ""


class Host:
    """One host.

    Args:
        topology: The network that it is on.
        number: Which one; from 1.

    Attributes:
        name: What it is called, here and on the other hosts.
        address: Its IPv4 address on the first network.
        address6: Its IPv6 address on the first network.
        second_address: Its IPv4 address on the second network.
    """

    def __init__(self, topology, number):
        self.number = number
        self.name = f"host{number}"
        self.address, self.second_address = f"10.77.0.{number}", f"10.78.0.{number}"
        self.address6 = f"fd77::{number}"
        self._topology = topology
        self._holder = None
        self._started = []
        self.hosts_file = topology.hosts_file
        self.boot()

    def boot(self):
        """Starts the host, with a new boot id and nothing running."""
        folder = self._topology.folder / self.name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "tmp").mkdir(parents=True)
        (folder / "tmp").chmod(0o1777)
        (folder / "tmp/home").mkdir()
        (folder / "hosts").write_text(self.hosts_file)
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self._folder = folder
        self._holder = _hold(
            _OF_HOSTS,
            ["sh", "-c", _BOOT],
            env={
                "PATH": os.environ["PATH"],
                "NAME": self.name,
                "FOLDER": str(folder),
                "SHARED": " ".join(map(str, self._topology.shared)),
            },
        )
        poll(lambda: (folder / "tmp/.booted").exists() or self._holder.poll() is not None)
        assert self._holder.poll() is None, f"{self.name} did not boot"
        self._init = _child_of(self._holder.pid)
        self._ip("link", "set", "lo", "up")
        self._topology.connect(self, self._init)
        self._ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self._ip("-6", "addr", "add", f"{self.address6}/64", "dev", "eth0", "nodad")
        self._ip("addr", "add", f"{self.second_address}/24", "dev", "eth1")
        self._ip("link", "set", "eth0", "up")
        self._ip("link", "set", "eth1", "up")

    def write_hosts(self, text):
        """Replaces ``/etc/hosts``, also after the next boot."""
        self.hosts_file = text
        with (self._folder / "hosts").open("r+") as file:  # the same file: it is mounted
            file.truncate()
            file.write(text)

    def start(self, command, env=None, cwd=None):
        """Starts a command on this host; returns its process, with its output in ``output()``."""
        number = len(self._started)
        log = self._topology.folder / f"{self.name}-{number}.log"
        environment = {
            **os.environ,
            "HOME": "/tmp/home",
            "HOSTNAME": self.name,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            **(env or {}),
        }
        with log.open("w") as file:
            process = subprocess.Popen(
                [
                    "nsenter",
                    "-t",
                    str(self._init),
                    "-m",
                    "-u",
                    "-i",
                    "-n",
                    "-p",
                    *map(str, command),
                ],
                env=environment,
                cwd=cwd or self._topology.shared[0],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        started = Command(process, log, self.name)
        self._started.append(started)
        return started

    def processes(self):
        """Returns the ids, on this machine, of what runs on the host."""
        found = []
        ours = os.readlink(f"/proc/{self._init}/ns/pid")
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == ours:
                    found.append(int(entry.name))
        return [pid for pid in found if pid != self._init]

    def command_of(self, pid):
        """Returns what a process runs; nothing if it has ended."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return ""

    def signal(self, pid, number):
        """Sends a signal to a process of this host."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def cut(self, *, inbound=True, outbound=True, peer=None, second=False):
        """Drops what comes in, what goes out, or both, without a word; of one peer or of everybody.

        Args:
            inbound: Whether the host hears nothing.
            outbound: Whether what it sends is lost.
            peer: Another host, if it is between the two of them alone.
            second: Whether the second network is meant too.
        """
        devices = ("eth0", "eth1") if second else ("eth0",)
        for device in devices:
            for tool in ("iptables", "ip6tables"):
                mine = () if peer is None else (_address_on(peer, device, tool),)
                if None in mine:
                    continue
                if inbound:
                    source = ("-s", *mine) if mine else ()
                    self._run(tool, "-w", "-I", "INPUT", "-i", device, *source, "-j", "DROP")
                if outbound:
                    target = ("-d", *mine) if mine else ()
                    self._run(tool, "-w", "-I", "OUTPUT", "-o", device, *target, "-j", "DROP")

    def firewall(self, *rule):
        """Adds a rule of iptables, at the top."""
        self._run("iptables", "-w", "-I", *rule)

    def heal(self):
        """Takes away all rules."""
        self._run("iptables", "-w", "-F")
        self._run("ip6tables", "-w", "-F")

    def limit(self, rate):
        """Limits what the host sends and receives to a rate such as ``1gbit``; ``None`` ends that."""
        if rate is None:
            # Replaces what there may be: deleting nothing would be an error.
            self._run("tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo_fast")
            self._topology.run(
                "tc", "qdisc", "replace", "dev", f"v{self.number}-0", "root", "pfifo_fast"
            )
            return
        shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "20ms")
        self._run("tc", "qdisc", "replace", "dev", "eth0", *shape)
        self._topology.run("tc", "qdisc", "replace", "dev", f"v{self.number}-0", *shape)

    def crash(self):
        """Ends the host without a word: the cable first, so that nobody hears that connections end."""
        for network in (0, 1):
            self._topology.run("ip", "link", "set", f"v{self.number}-{network}", "down")
        self.kill()

    def kill(self):
        """Ends all processes of the host at once."""
        self._holder.kill()
        self._holder.wait()
        for command in self._started:
            command.process.wait()

    def end(self):
        """Ends the host, if it has not ended."""
        if self._holder.poll() is None:
            self.kill()

    def _ip(self, *arguments):
        self._run("ip", *arguments)

    def _run(self, *command):
        _run("nsenter", "-t", str(self._init), "-n", *command)


class Command:
    """What runs on a host, or ran."""

    def __init__(self, process, log, host):
        self.process = process
        self._log = log
        self._host = host

    def output(self):
        """Returns what it has written, to standard output and standard error."""
        return self._log.read_text(errors="replace")

    def wait(self, seconds):
        """Waits until it ends and returns its exit code; fails after so many seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the command on {self._host} did not end within {seconds} s:\n{self.output()}"
            ) from None

    def wait_for(self, text, seconds):
        """Waits until it has written some text; fails after so many seconds, or when it ends before."""
        deadline = time.monotonic() + seconds
        while text not in self.output():
            is_over = self.process.poll() is not None and text not in self.output()
            assert not is_over, f"{self._host} ended before {text!r}:\n{self.output()}"
            assert time.monotonic() < deadline, f"{self._host}: no {text!r}:\n{self.output()}"
            time.sleep(0.02)


class Topology:
    """Some hosts on two networks.

    Args:
        folder: For what belongs to the hosts.
        shared: Folders that all hosts see; a command starts in the first one.
    """

    def __init__(self, folder, shared):
        self.folder = folder
        self.shared = shared
        self.hosts = []
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        for number in range(1, 10):
            lines += [f"10.77.0.{number} host{number}", f"fd77::{number} host{number}-v6"]
            lines += [f"10.78.0.{number} host{number}-b"]
        self.hosts_file = "\n".join(lines) + "\n"
        self._switch = _hold([], ["sleep", "infinity"], env=dict(os.environ))
        self._delaying = None
        for network in ("br0", "br1"):
            self.run("ip", "link", "add", network, "type", "bridge", "forward_delay", "0")
            self.run("ip", "link", "set", network, "up")

    def add(self, count):
        """Adds hosts and returns them."""
        first = len(self.hosts) + 1
        added = [Host(self, number) for number in range(first, first + count)]
        self.hosts += added
        return added

    def connect(self, host, init):
        """Gives a host its two interfaces; those of before are gone with it."""
        for network in (0, 1):
            port = f"v{host.number}-{network}"
            with contextlib.suppress(AssertionError):
                self.run("ip", "link", "del", port)
            self.run("ip", "link", "add", port, "type", "veth", "peer", "name", f"w{port}")
            inside = ("link", "set", f"w{port}", "netns", str(init), "name", f"eth{network}")
            self.run("ip", *inside)
            self.run("ip", "link", "set", port, "master", f"br{network}", "up")

    def delay(self, milliseconds):
        """Makes a round trip between hosts, on the first network, so much longer; 0 ends that."""
        ports = [(f"v{host.number}-0", f"d{host.number}", f"e{host.number}") for host in self.hosts]
        if self._delaying is not None:
            self._delaying.kill()
            self._delaying.wait()
            self._delaying = None
            for port, inner, _ in ports:
                self.run("ip", "link", "del", inner)
                self.run("ip", "link", "set", port, "master", "br0")
        if not milliseconds:
            return
        for port, inner, outer in ports:
            self.run("ip", "link", "add", inner, "type", "veth", "peer", "name", outer)
            self.run("ip", "link", "set", port, "nomaster")
            self.run("ip", "link", "set", inner, "master", "br0", "up")
            self.run("ip", "link", "set", outer, "up")
        pairs = [name for port, _, outer in ports for name in (port, outer)]
        # A round trip passes four of them: that of each host, in both directions.
        script = Path(__file__).with_name("packet_delay.py")
        command = [sys.executable, script, round(1000 * milliseconds / 4), *pairs]
        self._delaying = subprocess.Popen(
            ["nsenter", "-t", str(self._switch.pid), "-n", *map(str, command)]
        )

    def run(self, *command):
        """Runs a command in the switch."""
        _run("nsenter", "-t", str(self._switch.pid), "-n", *command)

    def close(self):
        """Ends all hosts, and with them the namespaces."""
        if self._delaying is not None:
            self._delaying.kill()
            self._delaying.wait()
        for host in self.hosts:
            host.end()
        self._switch.kill()
        self._switch.wait()


def poll(condition, seconds=_SECONDS_TO_BOOT):
    """Waits until a condition is true and returns its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.02)
    return value


def _hold(more, command, env):
    """Starts a process in new namespaces; it ends with this process, whatever ends that."""
    begun = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", *more, *command],
        env=env,
        stdin=subprocess.DEVNULL,
    )
    ours = os.readlink("/proc/self/ns/net")
    poll(lambda: begun.poll() is not None or os.readlink(f"/proc/{begun.pid}/ns/net") != ours)
    assert begun.poll() is None, "no namespace was made"
    return begun


def _child_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return int(poll(lambda: children.read_text().split())[0])


def _address_on(host, device, tool):
    if tool == "ip6tables":
        return host.address6 if device == "eth0" else None
    return host.address if device == "eth0" else host.second_address


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
