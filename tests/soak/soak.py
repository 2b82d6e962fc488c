"""Three workers, two parameter servers and a coordinator, under random kills, stops and network pauses.

    python tests/soak/soak.py --seconds 3600 --seed 0

Processes are killed and started again, stopped for a while (SIGSTOP, SIGCONT), and cut off from each other
(a relay holds back what goes to one of them). At the end every item must be marked as it should be, no
process may have grown, and no process or file may be left. The same seed makes the same disturbances in the
same order; what they meet depends on the machine. On a slow one there are fewer of them: after some, it is
waited for a round. Where nothing goes on any more, every process shows where its threads are. Exit code 0
if all is well.
"""

import argparse
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
NURSERY = HERE.parent / "multiprocess" / "server_nursery.py"
CHIEF, RELAY = HERE / "soak_chief.py", HERE / "relay.py"
WORKERS, SERVERS = 3, 2
FEWEST_SECONDS, MOST_SECONDS = 0.5, 4.0
LONGEST_PAUSE = 5.0
MOST_DISTURBANCES_WITHOUT_A_ROUND = 5
SECONDS_WITHOUT_A_ROUND = 240.0
GROWTH = 1.3
SLACK = 48 << 20


class Soak:
    """All processes of a soak, and what is done to them."""

    def __init__(self, directory, seed):
        from stratagem._src.cluster.reserved_ports import ReservedPorts

        self.rng = random.Random(seed)
        self.tasks = [("worker", i) for i in range(WORKERS)] + [("ps", i) for i in range(SERVERS)]
        self._directory = directory
        self._ports = ReservedPorts(2 * len(self.tasks))
        ports = list(self._ports)
        self._inner, outer = ports[: len(self.tasks)], ports[len(self.tasks) :]
        self.cluster = self._addresses(outer)
        self._listening = self._addresses(self._inner)
        self._relay = _start(
            [RELAY, *(f"{a}:{b}" for a, b in zip(outer, self._inner, strict=True))]
        )
        assert self._relay.stdout.readline() == "ready\n"
        self._nursery = _start([NURSERY])
        self.pids = {}
        for task in self.tasks:
            self.start(task)
        self._later = []

    def _addresses(self, ports):
        cluster = {}
        for (job, _), port in zip(self.tasks, ports, strict=True):
            cluster.setdefault(job, []).append(f"127.0.0.1:{port}")
        return cluster

    def start(self, task):
        """Starts a task, again perhaps."""
        job, index = task
        self._nursery.stdin.write(f"{job} {index} {json.dumps(self._listening)}\n")
        self._nursery.stdin.flush()
        self.pids[task] = int(self._nursery.stdout.readline())

    def start_chief(self, seconds):
        """Starts a coordinator, again perhaps."""
        arguments = [json.dumps(self.cluster), self._directory, str(seconds)]
        self.chief = _start([CHIEF, *arguments])
        self._unread = b""

    def next_line(self):
        """Returns what the coordinator has said next; ``None`` if it says nothing for a moment."""
        while b"\n" not in self._unread:
            with selectors.DefaultSelector() as selector:
                selector.register(self.chief.stdout, selectors.EVENT_READ)
                if not selector.select(0.05):
                    return None
            read = os.read(self.chief.stdout.fileno(), 1 << 16)
            if not read:
                time.sleep(0.05)
                return None
            self._unread += read
        line, self._unread = self._unread.split(b"\n", 1)
        return json.loads(line)

    def end_chief(self):
        """Ends the coordinator."""
        self.chief.kill()
        self.chief.wait()
        self.chief.stdin.close()
        self.chief.stdout.close()

    def show_threads(self):
        """Has every process write where its threads are."""
        self.undo(float("inf"))
        for name, pid in (("chief", self.chief.pid), *self.pids.items()):
            print(f"--- {name}, process {pid}", file=sys.stderr, flush=True)
            _signal(pid, signal.SIGUSR1)
            time.sleep(1.0)

    def disturb(self, now, seconds_left):
        """Does one thing to one process; what is to be undone is noted."""
        kind = self.rng.choices(["kill", "stop", "pause", "chief"], [4, 3, 3, 1])[0]
        task = self.rng.choice(self.tasks)
        seconds = self.rng.uniform(0.2, LONGEST_PAUSE)
        if kind != "chief" and any(task == other for _, other, _ in self._later):
            return "spared one that is disturbed already"
        index, pid = self.tasks.index(task), self.pids[task]
        if kind == "kill":
            _signal(pid, signal.SIGKILL)
            self._later.append((now + min(seconds, 1.0), task, lambda: self.start(task)))
        elif kind == "stop":
            _signal(pid, signal.SIGSTOP)
            self._later.append((now + seconds, task, lambda: _signal(pid, signal.SIGCONT)))
        elif kind == "pause":
            self._say_to_relay(f"pause {index}")
            self._later.append((now + seconds, task, lambda: self._say_to_relay(f"resume {index}")))
        else:
            self.end_chief()
            self.start_chief(seconds_left)
            return "kill chief"
        return f"{kind} {task[0]}"

    def undo(self, now):
        """Undoes what is due."""
        due = [undo for moment, _, undo in self._later if moment <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for undo in due:
            undo()

    def close(self):
        """Ends every process."""
        self.undo(float("inf"))
        self.end_chief()
        for process in (self._nursery, self._relay):
            process.stdin.close()
            process.wait(20)
            process.stdout.close()
        self._ports.close()

    def memory(self):
        """Returns the memory of every task that runs."""
        found = {}
        for task, pid in self.pids.items():
            try:
                found[task] = psutil.Process(pid).memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return found

    def _say_to_relay(self, line):
        self._relay.stdin.write(line + "\n")
        self._relay.stdin.flush()


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _start(command):
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHONWARNINGS": "ignore"},
    )


def run(seconds, seed, report=print):
    """Runs a soak; returns what is wrong."""
    directory = tempfile.mkdtemp(prefix="soak-")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    soak = Soak(directory, seed)
    try:
        problems = _run(soak, seconds, report)
    finally:
        soak.close()
    deadline = time.monotonic() + 10
    while (left := _children() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    problems += [f"process {pid} is left" for pid in left]
    files = sorted(path.name for path in Path(directory).iterdir())
    if len([name for name in files if not name.startswith("ckpt-")]) > 1 or len(files) > 4:
        problems.append(f"files are left: {files}")
    shutil.rmtree(directory)
    return problems


def _children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _run(soak, seconds, report):
    soak.start_chief(seconds)
    begun = last_round = time.monotonic()
    problems, samples, counts, lines = [], [], {}, []
    next_disturbance, since_round, end = begun, MOST_DISTURBANCES_WITHOUT_A_ROUND, None
    while end is None:
        now = time.monotonic()
        soak.undo(now)
        may_disturb = since_round < MOST_DISTURBANCES_WITHOUT_A_ROUND
        if may_disturb and next_disturbance <= now < begun + 0.85 * seconds:
            kind = soak.disturb(now, max(1.0, begun + seconds - now))
            counts[kind] = counts.get(kind, 0) + 1
            since_round += 1
            next_disturbance = now + soak.rng.uniform(FEWEST_SECONDS, MOST_SECONDS)
            samples.append((now, soak.memory()))
        line = soak.next_line()
        if line is None:
            if soak.chief.poll() is not None:
                # As a launcher would: it may have been started while a server was away.
                counts["chief failed"] = counts.get("chief failed", 0) + 1
                if counts["chief failed"] > 1 + counts.get("kill chief", 0):
                    return [*problems, f"the chief ended with {soak.chief.returncode}"]
                soak.end_chief()
                soak.start_chief(max(1.0, begun + seconds - now))
            if now > last_round + SECONDS_WITHOUT_A_ROUND:
                soak.show_threads()
                said = lines[-1] if lines else "nothing"
                return [*problems, f"nothing goes on; the last that the chief has said: {said}"]
            continue
        last_round, since_round = now, 0
        if line.get("end"):
            end = line
            break
        lines.append(line)
        if sys.stdout.isatty() or len(lines) % 20 == 1:
            report(f"{now - begun:6.0f} s  round {line['round']:5d}  {_listed(counts)}", flush=True)
    if end["missing"]:
        problems.append(f"items are not marked: {end['missing'][:20]}")
    if end["rounds"] < 1 or end["runs"] < 1:
        problems.append(f"nothing was done: {end}")
    problems += _growth(samples)
    problems += _growth_of_chief(lines)
    lost = [count for line in lines for count in line["lost"]]
    report(
        f"{end['rounds']} rounds, {len(lost)} recoveries of servers with {sum(lost)} functions lost and "
        f"done again; {_listed(counts)}",
        flush=True,
    )
    return problems


def _listed(counts):
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))


def _growth_of_chief(lines):
    """Returns whether a coordinator has become larger after its first rounds."""
    sizes = {}
    for line in lines:
        sizes.setdefault(line["pid"], []).append(line["rss"])
    return [
        f"a chief has grown from {rss[len(rss) // 2] >> 20} to {rss[-1] >> 20} MB"
        for rss in sizes.values()
        if rss[-1] > GROWTH * rss[len(rss) // 2] + SLACK
    ]


def _growth(samples):
    """Returns which kinds of tasks have become larger in the second half than they were in the first."""
    problems = []
    half = len(samples) // 2
    for job in ("worker", "ps"):
        early, late = (
            max(
                (rss for _, tasks in part for (kind, _), rss in tasks.items() if kind == job),
                default=0,
            )
            for part in (samples[:half], samples[half:])
        )
        if early and late > GROWTH * early + SLACK:
            problems.append(f"{job}s have grown from {early >> 20} to {late >> 20} MB")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    problems = run(options.seconds, options.seed)
    for problem in problems:
        print("wrong:", problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
