"""Where workers share memory, every collective of a program begins after the one before it."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from stratagem._src.collective_backends.shared_memory import ffi_collectives
from stratagem._src.collectives.collective_fusion import fuse_collectives
from stratagem._src.collectives.shard_map_merging import evaluate_merged
from stratagem._src.jaxpr.replication_analysis import has_collectives
from stratagem._src.jaxpr.walk import inner_jaxprs
from stratagem._src.mesh.replica_group import ReplicaGroup

AXIS = "replica"
NUM_PROCESSES = 2
GROUPS = {
    f"{num_devices} each": types.SimpleNamespace(
        size=NUM_PROCESSES * num_devices,
        local_size=num_devices,
        on_cpu=True,
        spans_processes=True,
        has_equal_blocks=True,
    )
    for num_devices in (1, 2)
}
X = np.zeros(3, np.float32)


@pytest.fixture(autouse=True)
def exchange(monkeypatch):
    exchange = types.SimpleNamespace(num_processes=NUM_PROCESSES)
    monkeypatch.setattr(ffi_collectives, "_rendezvous", types.SimpleNamespace(backend=exchange))


def twice(value):
    return lax.fori_loop(0, 2, lambda _, v: v + lax.psum(v, AXIS), value)


PROGRAMS = {
    "levels": lambda x: lax.psum(x, AXIS) + lax.psum(lax.psum(x, AXIS) * x, AXIS),
    "kinds": lambda x: (lax.psum(x, AXIS), lax.pmax(x, AXIS), lax.all_gather(x, AXIS)),
    "types": lambda x: (lax.psum(x, AXIS), lax.psum(x + 1j, AXIS), lax.pmin(x, AXIS)),
    "own and XLA's": lambda x: (
        lax.psum(x, AXIS),
        lax.ppermute(x, AXIS, [(0, 1), (1, 0)]),
        lax.psum_scatter(jnp.stack([x] * 4), AXIS, tiled=True),
        lax.psum_scatter(jnp.stack([x + 1j] * 4), AXIS, tiled=True),
    ),
    "loops": lambda x: (twice(x), twice(x + 1), lax.psum(x, AXIS)),
    "a loop over numbers alone": lambda x: (
        lax.psum(x, AXIS),
        lax.fori_loop(0, 2, lambda _, v: v + lax.psum(v * lax.axis_index(AXIS), AXIS), 1.0),
    ),
    "an operand twice": lambda x: (
        lax.psum(x, AXIS),
        lax.fori_loop(0, 2, lambda _, v: (v[1], lax.psum(v[0], AXIS)), (x, x)),
    ),
}


def waits(eqn):
    """Returns whether other workers are waited for in an equation, or in a loop that it is."""
    if has_collectives([eqn]) or eqn.params.get("name") == "stratagem_exchange":
        return True
    return any(waits(inner) for jaxpr in inner_jaxprs(eqn) for inner in jaxpr.eqns)


def waits_in_order(jaxpr, before):
    """Returns what each result of a program waits for; asserts that whatever waits comes after all before.

    Args:
        jaxpr: The program.
        before: What each of its inputs waits for.
    """
    known = dict(zip(jaxpr.invars, before, strict=True))
    for eqn in jaxpr.eqns:
        inputs = [known.get(v, set()) for v in eqn.invars if not hasattr(v, "val")]
        follows = set().union(*inputs)
        if eqn.primitive.name == "shard_map":
            given = [set() if hasattr(v, "val") else known.get(v, set()) for v in eqn.invars]
            known.update(zip(eqn.outvars, waits_in_order(eqn.params["jaxpr"], given), strict=True))
            continue
        if waits(eqn):
            assert follows >= waiting
            waiting.add(id(eqn))
            follows = follows | {id(eqn)}
        known.update((v, follows) for v in eqn.outvars)
    return [set() if hasattr(v, "val") else known.get(v, set()) for v in jaxpr.outvars]


waiting: set[int] = set()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("devices", GROUPS)
def test_each_collective_depends_on_the_one_before(name, devices):
    group = GROUPS[devices]
    environment = [(AXIS, group.size)]

    def program(x):
        closed = jax.make_jaxpr(PROGRAMS[name], axis_env=environment)(x)
        return fuse_collectives(closed, [True], group)(x)

    waiting.clear()
    waits_in_order(jax.make_jaxpr(program, axis_env=environment)(X).jaxpr, [set()])
    assert len(waiting) > 1


def test_collectives_of_a_later_program_come_after_those_of_an_earlier_one(monkeypatch):
    group = ReplicaGroup(tuple(jax.devices()[:2]))
    group.spans_processes = True
    exchange = types.SimpleNamespace(num_processes=1)
    monkeypatch.setattr(ffi_collectives, "_rendezvous", types.SimpleNamespace(backend=exchange))

    def in_replicas(fn, *args):
        specs = [PartitionSpec(AXIS)] * len(args)
        return jax.shard_map(
            fn, mesh=group.mesh, in_specs=tuple(specs), out_specs=specs[0], check_vma=False
        )(*args)

    def program(x):
        def first(x):
            return lax.psum(x, AXIS), lax.psum(lax.psum(x, AXIS) * x, AXIS)

        summed, squared = in_replicas(first, x)
        return squared, in_replicas(lambda x: lax.psum(x, AXIS), jnp.sort(summed))

    def merged(x):
        closed = jax.make_jaxpr(program)(x)
        return evaluate_merged(closed.jaxpr, closed.consts, [x], group)

    waiting.clear()
    waits_in_order(jax.make_jaxpr(merged)(np.zeros(6, np.float32)).jaxpr, [set()])
    assert len(waiting) == 3


@pytest.mark.parametrize("loop", ["loops", "a loop over numbers alone", "an operand twice"])
def test_every_operand_of_a_loop_is_used_in_it(loop):
    group = GROUPS["1 each"]
    environment = [(AXIS, group.size)]

    def program(x):
        closed = jax.make_jaxpr(PROGRAMS[loop], axis_env=environment)(x)
        return fuse_collectives(closed, [True], group)(x)

    equations = jax.make_jaxpr(program, axis_env=environment)(X).jaxpr.eqns
    bodies = [jaxpr for eqn in equations for jaxpr in inner_jaxprs(eqn) if waits(eqn)]
    assert bodies
    for body in bodies:
        [begun] = [e for e in body.eqns if e.params.get("name") == "stratagem_token"]
        assert set(body.invars) <= set(begun.invars)


def test_packs_are_of_the_size_that_pays_where_they_travel():
    group = GROUPS["1 each"]
    environment = [(AXIS, group.size)]

    def program(*arrays):
        summed = [lax.psum(x, AXIS) for x in arrays]
        return summed, [lax.ppermute(x, AXIS, [(0, 1), (1, 0)]) for x in arrays]

    def run(*arrays):
        closed = jax.make_jaxpr(program, axis_env=environment)(*arrays)
        return fuse_collectives(closed, [True] * len(arrays), group)(*arrays)

    arrays = [np.zeros(80_000, np.float32)] * 3
    equations = jax.make_jaxpr(run, axis_env=environment)(*arrays).jaxpr.eqns
    [exchange] = [e for e in equations if e.params.get("name") == "stratagem_exchange"]
    assert [v.aval.shape for v in exchange.outvars] == [(80_000,)] * 3 + [(1,)]
    [sent] = [e for e in equations if e.primitive.name == "ppermute"]
    assert sent.outvars[0].aval.shape == (240_000,)
