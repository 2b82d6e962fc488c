"""All-reduces of one worker among others on several hosts; prints milliseconds by size as JSON.

Started by between_hosts.py on each host. Prints those of a bare ``psum``, which XLA does with Gloo, too.
"""

import json
import sys

from multi_worker import all_reduces, medians

import stratagem as sg

sizes, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
options = sg.distribute.experimental.CommunicationOptions(
    dtype=sys.argv[3] if len(sys.argv) > 3 else None
)
strategy = sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)
results = {}
for size, count in sizes.items():
    repeats = 20 if count <= 2**18 else 1
    results[size] = medians(all_reduces(strategy, count, False), rounds, repeats)
print(json.dumps(results), flush=True)
