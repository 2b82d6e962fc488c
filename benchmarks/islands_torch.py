"""One of two hosts of islands.py with torch; prints milliseconds and bytes a step as JSON.

Arguments: the width of the hidden layers, the rows of a batch, the number of steps, and after how many of
them parameters are averaged; 0 trains with DistributedDataParallel. Started with another interpreter: it
must not import stratagem.
"""

import json
import os
import sys

import torch
import torch.distributed
from islands_model import RATE, Measured, batches, first_weights

width, rows, steps, every = map(int, sys.argv[1:5])
config = json.loads(os.environ["TF_CONFIG"])
addresses, rank = config["cluster"]["worker"], config["task"]["index"]
torch.distributed.init_process_group(
    "gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=len(addresses)
)
values = first_weights(width)
layers = []
for value in values:
    layer = torch.nn.Linear(*value.shape, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(value.T))
    layers += [layer, torch.nn.ReLU()]
model = torch.nn.Sequential(*layers[:-1])
weights = list(model.parameters())
trained = model if every else torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(trained.parameters(), lr=RATE)


def average():
    """Averages the parameters of all hosts, as torch's PeriodicModelAverager does: in one all-reduce."""
    with torch.no_grad():
        flat = torch.cat([weight.reshape(-1) for weight in weights]) / len(addresses)
        torch.distributed.all_reduce(flat)
        start = 0
        for weight in weights:
            weight.copy_(flat[start : start + weight.numel()].view_as(weight))
            start += weight.numel()


before = every or 2
inputs, targets = batches(before + steps, rows, rank)
measured = Measured()
for number, (x, y) in enumerate(zip(inputs, targets, strict=True)):
    if number == before:
        measured.begin()
    optimizer.zero_grad()
    loss = torch.mean((trained(torch.from_numpy(x)) - torch.from_numpy(y)) ** 2)
    loss.backward()
    optimizer.step()
    if every and (number + 1) % every == 0:
        average()
result = measured.result(steps, [weight.detach().numpy().T for weight in weights])
torch.distributed.barrier()
print(json.dumps(result), flush=True)
