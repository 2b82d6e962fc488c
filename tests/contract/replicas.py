"""Replicas of the contract's strategies, which may live in other workers."""

import base64
import os
import pickle

import jax
import numpy as np
import pytest

from stratagem._src.mesh.process_monitor import process_monitor

IN_WORKERS = "TF_CONFIG" in os.environ
"""Whether this process is one of the workers that run the contract together."""


def one_process(reason):
    """Marks a test of something that the replicas of one process do, and workers do not."""
    return pytest.mark.skipif(IN_WORKERS, reason=reason)


def components(strategy, value):
    """Returns every replica's component of a value, in order, also those in other workers."""
    local = strategy.experimental_local_results(value)
    if not strategy.replica_group.spans_processes:
        return list(local)
    plain = [jax.tree.map(np.asarray, component) for component in local]
    text = base64.b64encode(pickle.dumps(plain)).decode()
    every = process_monitor().all_gather_object("components", text, "components of a value")
    return [component for given in every for component in pickle.loads(base64.b64decode(given))]


def local_ids(strategy):
    """Returns which replicas are in this process."""
    group = strategy.replica_group
    return range(group.first_local, group.first_local + group.local_size)
