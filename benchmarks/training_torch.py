"""A network of ``training.py`` trained with torch, in several processes with DDP; started by it.

Prints examples per second as JSON.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as functional
import training_models
from torch import nn
from training_models import (
    BLOCKS,
    CHANNELS,
    CONTEXT,
    DIMS,
    FEATURES,
    GROUPS,
    HEADS,
    PATCH,
    PATCHES,
    ROWS,
    UNITS,
    WORDS,
)
from training_rate import examples_per_second


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before, channels, stride):
        super().__init__()
        self.first_norm = nn.GroupNorm(GROUPS, before)
        self.first = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, channels, 1, stride, bias=False)

    def forward(self, x):
        """Computes it."""
        y = self.first(functional.relu(self.first_norm(x)))
        return self.shortcut(x) + self.second(functional.relu(self.second_norm(y)))


class Attention(nn.Module):
    """One block of a transformer."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal
        self.before, self.before_hidden = nn.RMSNorm(DIMS), nn.RMSNorm(DIMS)
        self.joint = nn.Linear(DIMS, 3 * DIMS, bias=False)
        self.attended = nn.Linear(DIMS, DIMS, bias=False)
        self.hidden = nn.Linear(DIMS, 4 * DIMS, bias=False)
        self.out = nn.Linear(4 * DIMS, DIMS, bias=False)

    def forward(self, x):
        """Computes it."""
        heads = self.joint(self.before(x)).unflatten(-1, (3, HEADS, DIMS // HEADS))
        queries, keys, values = (heads[:, :, i].transpose(1, 2) for i in range(3))
        y = functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.is_causal)
        x = x + self.attended(y.transpose(1, 2).flatten(2))
        hidden = functional.gelu(self.hidden(self.before_hidden(x)), approximate="tanh")
        return x + self.out(hidden)


class Transformer(nn.Module):
    """Scores for the word after each place of a text."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, DIMS), nn.Embedding(CONTEXT, DIMS)
        self.blocks = nn.Sequential(*(Attention(is_causal=True) for _ in range(BLOCKS)))
        self.norm, self.scores = nn.RMSNorm(DIMS), nn.Linear(DIMS, WORDS, bias=False)

    def forward(self, words):
        """Computes them."""
        x = self.words(words) + self.places.weight
        return self.scores(self.norm(self.blocks(x))).transpose(1, 2)


class VisionTransformer(nn.Module):
    """Scores for an image, by its patches."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, DIMS, PATCH, PATCH, bias=False)
        self.places = nn.Parameter(torch.randn(PATCHES, DIMS) * 0.02)
        self.blocks = nn.Sequential(*(Attention(is_causal=False) for _ in range(BLOCKS)))
        self.norm, self.scores = nn.RMSNorm(DIMS), nn.Linear(DIMS, 10, bias=False)

    def forward(self, images):
        """Computes them."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.scores(self.norm(self.blocks(x)).mean(1))


class Recurrent(nn.Module):
    """Scores for a series, by the last state of a GRU."""

    def __init__(self):
        super().__init__()
        self.gru, self.scores = nn.GRU(FEATURES, UNITS, batch_first=True), nn.Linear(UNITS, 10)

    def forward(self, series):
        """Computes them."""
        return self.scores(self.gru(series)[1][0])


class Recommender(nn.Module):
    """Scores for pairs of a user and an item."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, DIMS) for rows in ROWS)
        self.hidden, self.scores = nn.Linear(2 * DIMS, DIMS), nn.Linear(DIMS, 2)

    def forward(self, pairs):
        """Computes them."""
        rows = [table(pairs[:, i]) for i, table in enumerate(self.tables)]
        return self.scores(functional.relu(self.hidden(torch.cat(rows, -1))))


OTHERS = {
    "transformer": Transformer,
    "vit": VisionTransformer,
    "gru": Recurrent,
    "recommender": Recommender,
}


def make_network(name):
    if name == "digits":
        return nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
        )
    if name in OTHERS:
        return OTHERS[name]()
    blocks, before = [], CHANNELS[0]
    for channels, stride in zip(CHANNELS, (1, 2, 2), strict=True):
        blocks.append(Block(before, channels, stride))
        before = channels
    first = nn.Conv2d(3, CHANNELS[0], 3, 1, 1, bias=False)
    return nn.Sequential(
        first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)
    )


def main() -> None:
    name, _, num_processes, seconds = json.loads(sys.argv[1])
    rank = 0
    network = make_network(name)
    if num_processes > 1:
        torch.set_num_threads(1)
        config = json.loads(os.environ["TF_CONFIG"])
        rank = config["task"]["index"]
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://{config['cluster']['worker'][0]}",
            rank=rank,
            world_size=num_processes,
        )
        network = nn.parallel.DistributedDataParallel(network)
    task = training_models.TASKS[name]
    inputs, labels = map(torch.from_numpy, training_models.make_data(name))
    if name in ("resnet", "vit"):
        inputs = inputs.permute(0, 3, 1, 2).contiguous()
    labels = labels.long()
    optimizer = torch.optim.Adam(network.parameters(), training_models.LEARNING_RATE)
    random, share = np.random.default_rng(2), task.batch // num_processes

    def batches():
        while True:
            order = torch.from_numpy(random.permutation(task.examples))
            for start in range(0, task.examples, task.batch):
                mine = order[start + rank * share : start + (rank + 1) * share]
                yield inputs[mine], labels[mine]

    source, last = batches(), []

    def step():
        x, y = next(source)
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        last[:] = [loss]

    def agreed(steps):
        if num_processes == 1:
            return steps
        everyone = torch.tensor([steps])
        torch.distributed.broadcast(everyone, 0)
        return int(everyone)

    rate = examples_per_second(step, lambda: float(last[0]), task.batch, seconds, agreed)
    print(json.dumps(rate), flush=True)


if __name__ == "__main__":
    main()
