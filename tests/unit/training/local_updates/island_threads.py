"""Islands as threads of one process, and what NumPy says of them."""

import numpy as np
import optax

import stratagem as sg
from stratagem._src.process.background import Background

LocalUpdates = sg.distribute.experimental.LocalUpdates
RATE = np.float32(0.25)
TARGETS = (np.float32([1, 2, 3]), np.float32([5, -2, 0]), np.float32([2, 2, 2]))
DILOCO = {"learning_rate": 0.7, "momentum": 0.9, "nesterov": True}


class Island:
    """One island in a thread; ``w`` moves to its target by a quarter of the way in each step."""

    def __init__(self, server, number, first=0.0, num_islands=2, shape=(3,), **options):
        strategy = sg.distribute.OneDeviceStrategy("CPU:0")
        with strategy.scope():
            self.w = sg.Variable(np.full(shape, first, np.float32))
        self.number = number
        self.islands = LocalUpdates(
            strategy,
            [self.w],
            **{"sync_every": 2, "timeout_seconds": 20.0} | options,
            island=number,
            num_islands=num_islands,
            server=server if isinstance(server, str) else server.address,
        )

    def inner_step(self):
        self.w.assign_sub(RATE * (self.w.value_on_host() - TARGETS[self.number]))
        self.islands.step()

    def train(self, steps):
        with self.islands:
            while self.islands.num_steps < steps:
                self.inner_step()

    @property
    def value(self):
        return np.array(self.w.value_on_host())


def run_all(*calls):
    """Calls functions at the same time; raises what one of them raises."""
    errors = []

    def run(call):
        try:
            call()
        except BaseException as error:
            errors.append(error)

    background = Background("a test")
    for call in calls:
        background.start(run, call, name="island")
    assert background.join(60) == []
    if errors:
        raise errors[0]


def reference(steps, sync_every, islands=2, outer=None, overlap=0, first=0.0):
    """Returns what NumPy says that all islands have after so many steps, and how many outer steps."""
    values = [np.full(3, first, np.float32) for _ in range(islands)]
    shared = values[0].copy()
    state = None if outer is None else outer.init(shared)
    flight = None

    def land():
        nonlocal shared, state, flight
        mean = sum(flight[1]) / np.float32(islands)
        if outer is None:
            shared = mean
        else:
            updates, state = outer.update(shared - mean, state, shared)
            shared = np.asarray(optax.apply_updates(shared, updates))
        for i in range(islands):
            values[i] = shared + (values[i] - flight[1][i])
        flight = None

    for step in range(1, steps + 1):
        for i in range(islands):
            values[i] = values[i] - RATE * (values[i] - TARGETS[i])
        if flight is not None and step >= flight[0]:
            land()
        if step % sync_every == 0:
            flight = (step + overlap, [v.copy() for v in values])
            if not overlap:
                land()
    last = steps // sync_every * sync_every
    if flight is not None:
        land()
    if steps > last:
        flight = (0, [v.copy() for v in values])
        land()
    return values
