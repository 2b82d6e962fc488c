"""The devices that steps are compiled for: none of them is attached."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

_H100 = Path(__file__).with_name("h100.textproto")

TPUS = ("v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4")
GPUS = ("h100:1x1x8", "h100:1x2x8")
"""Hosts x devices of a host: the second has two hosts."""


@functools.cache
def devices_of(target: str) -> tuple[jax.Device, ...]:
    """Returns the devices of a target, at most eight, or sixteen on two GPU hosts."""
    kind, topology = target.split(":")
    if kind == "h100":
        options: dict[str, Any] = {"topology": topology, "target_config": _H100.read_text()}
        return tuple(topologies.get_topology_desc("H100", "cuda", **options).devices)
    return tuple(topologies.get_topology_desc(target, "tpu").devices[:8])
