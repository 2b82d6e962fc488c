"""Starts servers quickly: a process that has imported everything, and forks for each one.

Reads ``start job index cluster`` from its input and answers with the process id; at the end of its
input it ends, and every server with it.
"""

import faulthandler
import json
import os
import signal
import sys
import warnings

import stratagem as sg
import stratagem._src.parameter_server.task_server


def main():
    warnings.simplefilter("ignore")  # JAX warns of forks, but has not started anything yet
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)  # shows where the threads of a server are
    os.setpgid(0, 0)
    for line in sys.stdin:
        job, index, cluster = line.split(" ", 2)
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            sg.distribute.Server(sg.train.ClusterSpec(json.loads(cluster)), job, int(index)).join()
            os._exit(0)
        print(pid, flush=True)
    os.killpg(0, signal.SIGKILL)


main()
