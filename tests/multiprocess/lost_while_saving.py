"""A worker that saves twice with others, of which the last is killed while it writes the second.

Argument: the directory. Prints the first checkpoint and what became of the second, as JSON.
"""

import json
import os
import signal
import sys

import numpy as np

import stratagem as sg
from stratagem._src.checkpoint.format.array_store import ArrayWriter

directory = sys.argv[1]
strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = sg.Variable(np.zeros(1000, np.float32))
checkpoint = sg.train.Checkpoint(w=w)
first = checkpoint.save(f"{directory}/ckpt")
checkpoint.sync()
if strategy.cluster_resolver.task_id == strategy.num_replicas_in_sync - 1:
    ArrayWriter.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save(f"{directory}/ckpt")
try:
    checkpoint.sync()
except sg.errors.UnavailableError as error:
    print(json.dumps({"first": first, "error": str(error)}), flush=True)
