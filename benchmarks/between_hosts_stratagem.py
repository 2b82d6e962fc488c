"""All-reduces of one worker among others on several hosts; prints milliseconds by size as JSON.

Started by between_hosts.py on each host. Prints those of a bare ``psum``, which XLA does with Gloo, too.
"""

import json
import sys

from multi_worker import all_reduces, medians
from network_phases import phases

import stratagem as sg

sizes, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
options = sg.distribute.experimental.CommunicationOptions(
    dtype=sys.argv[3] if len(sys.argv) > 3 else None
)
strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
ways = {size: all_reduces(strategy, count, False) for size, count in sizes.items()}
for _ in phases():
    results = {
        size: medians(ways[size], rounds, repeats=20 if count <= 2**18 else 1)
        for size, count in sizes.items()
    }
    print(json.dumps(results), flush=True)
