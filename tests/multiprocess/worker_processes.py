"""Workers as processes on their own, without a launcher that would end them."""

import json
import os
import subprocess
import sys


class Workers:
    """Some workers, and what became of them."""

    def __init__(self, addresses, script, arguments, num_devices=1):
        self.addresses = addresses
        self.processes = []
        for index in range(len(addresses)):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment = {
                **os.environ,
                "TF_CONFIG": json.dumps(config),
                "JAX_NUM_CPU_DEVICES": str(num_devices),
            }
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, script, *map(str, arguments)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def outcome(self, index, timeout=60):
        """Returns the exit code of a worker, and the last line that it printed as JSON."""
        process = self.processes[index]
        printed, errors = process.communicate(timeout=timeout)
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        assert lines, f"worker {index} ended with {process.returncode}: {printed}\n{errors}"
        return process.returncode, json.loads(lines[-1])

    def name(self, index):
        return f"worker {index} ({self.addresses[index]})"
