"""Variables held by an object that writes down every message, in place of servers."""

import jax.numpy as jnp
import numpy as np

import stratagem as sg
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.variable import _register


class Holder:
    """Holds values by name, and the messages it got.

    ``messages`` has one entry for each pull, ``("pull", [(name, rows), ...])``, and for each push,
    ``("push", [(name, update), ...])``. An update that only the server can carry out subtracts half of
    its operand.
    """

    def __init__(self):
        self.values = {}
        self.messages = []
        self.broken = False

    def pull(self, requests):
        self.messages.append(
            ("pull", [(name, None if rows is None else rows.tolist()) for name, rows in requests])
        )
        return [np.array(self.values[n] if r is None else self.values[n][r]) for n, r in requests]

    def push(self, requests):
        if self.broken:
            raise ConnectionError("the holder is gone")
        self.messages.append(("push", [(name, update.name) for name, update, _ in requests]))
        for name, update, operands in requests:
            old = jnp.asarray(self.values[name])
            if update.server_only:
                new = old - 0.5 * operands[0]
            else:
                new = update.apply(
                    old, sg.IndexedSlices(*operands) if update.sparse else operands[0]
                )
            self.values[name] = np.asarray(new)

    def take_messages(self):
        messages, self.messages = self.messages, []
        return messages


class HeldVariable(BaseRemoteVariable):
    __slots__ = ("_holder",)

    def __init__(self, strategy, holder, name, value, aggregation=sg.VariableAggregation.NONE):
        value = np.asarray(value)
        self._holder = holder
        holder.values[name] = value
        super().__init__(
            strategy,
            name=name,
            shape=value.shape,
            dtype=value.dtype,
            trainable=True,
            synchronization=sg.VariableSynchronization.AUTO,
            aggregation=aggregation,
        )

    @property
    def storage(self):
        return self._holder

    def read_requests(self, rows):
        return [(self._name, rows)]

    def assemble(self, parts, rows):
        return parts[0]

    def update_requests(self, update, operands):
        return [(self._name, update, operands)]


_register(HeldVariable)
