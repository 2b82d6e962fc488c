"""Workers that save a checkpoint in the directory that is the argument, and say how that went."""

import sys

import numpy as np

import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = sg.Variable(np.zeros(1000, np.float32))
path = sg.train.Checkpoint(weights=weights).save(f"{sys.argv[1]}/ckpt")
sg.train.Checkpoint(weights=weights).restore(path)
print("restored", flush=True)
