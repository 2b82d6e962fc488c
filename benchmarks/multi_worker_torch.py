"""All-reduce with torch's Gloo in one of several processes; prints milliseconds by size as JSON.

Started by multi_worker.py and between_hosts.py with another interpreter: it must not import stratagem.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed
from network_phases import phases

sizes, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
config = json.loads(os.environ["TF_CONFIG"])
torch.distributed.init_process_group(
    "gloo",
    init_method=f"tcp://{config['cluster']['worker'][0]}",
    rank=config["task"]["index"],
    world_size=len(config["cluster"]["worker"]),
)
for _ in phases():
    results = {}
    for size, count in sizes.items():
        value = torch.rand(count)
        repeats = 20 if count <= 2**18 else 1
        times = []
        for round_number in range(rounds + 2):
            start = time.perf_counter()
            for _ in range(repeats):
                torch.distributed.all_reduce(value)
            if round_number >= 2:
                times.append((time.perf_counter() - start) / repeats * 1e3)
        results[size] = statistics.median(times)
    torch.distributed.barrier()
    print(json.dumps(results), flush=True)
