"""Joined collectives compute what they compute one by one, and are as few as can be."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from stratagem._src.collectives.collective_fusion import fuse_collectives
from stratagem._src.collectives.packing import Packing, in_packs
from stratagem._src.jaxpr.replication_analysis import mark_replicated
from stratagem._src.mesh.replica_group import ReplicaGroup

AXIS = "replica"


@pytest.fixture(params=[2, 3, pytest.param(4, marks=pytest.mark.slow)])
def group(request):
    return ReplicaGroup.of(jax.devices()[: request.param])


def compiled(function, group, in_specs, *, joins):
    """Returns the program of a replica function of arrays, all of whose outputs are per replica."""

    def body(*blocks):
        if not joins:
            return jax.tree.leaves(function(*blocks))
        closed = jax.make_jaxpr(lambda *blocks: jax.tree.leaves(function(*blocks)))(*blocks)
        return fuse_collectives(closed, [AXIS in spec for spec in in_specs], group)(*blocks)

    def stacked(*blocks):
        return [x[None] for x in body(*blocks)]

    return jax.jit(
        jax.shard_map(
            stacked,
            mesh=group.mesh,
            in_specs=in_specs,
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )
    )


def collectives(program, *arrays):
    text = program.lower(*arrays).as_text()
    return re.findall(r'"stablehlo\.(all_reduce|all_gather|collective_permute)"', text)


def both(function, group, *, split=(), whole=()):
    """Returns the results as written and joined, and the collectives of the joined program."""
    arrays = [*split, *whole]
    specs = (*[PartitionSpec(AXIS)] * len(split), *[PartitionSpec()] * len(whole))
    plain = compiled(function, group, specs, joins=False)
    program = compiled(function, group, specs, joins=True)
    return plain(*arrays), program(*arrays), collectives(program, *arrays)


def rows(group, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(group.size, *shape)).astype(np.float32)


# --- random programs ----------------------------------------------------------------------------

_UNARY = (jnp.tanh, jnp.negative, lambda x: x * 0.5, lambda x: jnp.roll(x, 1, 0), jax.jit(jnp.sin))
_BINARY = (jnp.add, jnp.multiply, jnp.maximum)


def _random_program(seed, size):
    """Returns a function of a split and of a whole array, made of collectives and other operations."""
    random = np.random.default_rng(seed)
    steps = [(int(random.integers(12)), *random.integers(1 << 30, size=2)) for _ in range(size)]

    def function(mine, shared):
        values = [mine[0], shared, mine[0][:2], jnp.float32(1.5) + shared[:2] * 0]

        def pick(number, shape=None):
            fitting = [v for v in values if shape is None or v.shape == shape]
            return fitting[number % len(fitting)]

        for choice, first, second in steps:
            x = pick(int(first))
            y = pick(int(second), x.shape)
            if choice < 2:
                made = lax.psum(x, AXIS)
            elif choice == 2:
                made = lax.pmean(x, AXIS)
            elif choice == 3:
                made = (lax.pmin, lax.pmax)[second % 2](x, AXIS)
            elif choice == 4:
                made = lax.all_gather(x, AXIS, axis=0, tiled=bool(second % 2)).sum(0) + x * 0
            elif choice == 5:
                n = lax.axis_size(AXIS)
                made = lax.ppermute(x, AXIS, [(i, (i + 1) % n) for i in range(n)])
            elif choice == 6:
                made = x * lax.axis_index(AXIS).astype(x.dtype)
            elif choice == 7:
                made = jax.jit(lambda a, b: lax.pmean(a, AXIS) - lax.psum(b, AXIS))(x, y)
            elif choice == 8:

                def body(carry, _):
                    return (lax.pmean(carry[0], AXIS), lax.pmean(carry[1], AXIS) + carry[0]), None

                made = lax.scan(body, (x, y), None, length=2)[0][1]
            elif choice == 9:
                made = _BINARY[second % len(_BINARY)](x, y)
            else:
                made = _UNARY[second % len(_UNARY)](x)
            values.append(made)
        return values

    return function


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))]
)
def test_random_programs_compute_the_same(group, seed):
    function = _random_program(seed, 14)
    plain, result, _ = both(function, group, split=[rows(group, 5)], whole=[rows(group, 5)[0]])
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-5)
        if group.size == 2:
            # What is left out or packed changes no bit where a sum is exact.
            np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(12, 18))
def test_never_more_collectives_than_written(group, seed):
    function = _random_program(seed, 14)
    arrays = [rows(group, 5), rows(group, 5)[0]]
    specs = (PartitionSpec(AXIS), PartitionSpec())
    plain = collectives(compiled(function, group, specs, joins=False), *arrays)
    fewer = collectives(compiled(function, group, specs, joins=True), *arrays)
    assert len(fewer) <= len(plain)


# --- what travels together -------------------------------------------------------------------------


def test_independent_sums_are_one(group):
    def function(x):
        return [lax.psum(x * i, AXIS) for i in range(5)] + [lax.pmean(x.sum(), AXIS)]

    plain, result, found = both(function, group, split=[rows(group, 3)])
    assert found == ["all_reduce"]
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_inside_calls_of_functions(group):
    inner = jax.jit(lambda x: lax.pmean(x, AXIS) + 1)
    twice = jax.custom_jvp(lambda x: inner(x) * 2)
    twice.defjvp(lambda primals, tangents: (twice(*primals), tangents[0]))

    def function(x):
        return inner(x), inner(x * 2), twice(x * 3), lax.psum(x.sum(), AXIS)

    plain, result, found = both(function, group, split=[rows(group, 3)])
    assert found == ["all_reduce"]
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_one_after_the_other_where_one_needs_the_other(group):
    def function(x):
        mean = lax.pmean(x, AXIS)
        variance = lax.pmean((x - mean) ** 2, AXIS)
        early, late = lax.psum(x * 2, AXIS), lax.psum(x * variance, AXIS)
        return mean, variance, early, late

    plain, result, found = both(function, group, split=[rows(group, 3)])
    assert found == ["all_reduce"] * 3
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_kinds_and_dtypes_travel_apart(group):
    def function(x):
        whole = (x * 10).astype(jnp.int32)
        half = x.astype(jnp.bfloat16)
        return [
            *(lax.psum(v, AXIS) for v in (x, x + 1, whole, whole + 1, half, half * 2)),
            *(lax.pmax(v, AXIS) for v in (x, x + 1)),
            *(lax.all_gather(v, AXIS) for v in (x, x + 1, x > 0, x > 1)),
        ]

    plain, result, found = both(function, group, split=[rows(group, 3)])
    assert sorted(found) == ["all_gather"] * 2 + ["all_reduce"] * 4
    for expected, value in zip(plain, result, strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_gathers_along_any_axis(group, axis, tiled):
    def function(x):
        x = x[0]
        return [lax.all_gather(x * i, AXIS, axis=axis, tiled=tiled) for i in range(3)]

    plain, result, found = both(function, group, split=[rows(group, 2, 3)])
    assert found == ["all_gather"]
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_permutations_of_one_kind(group):
    n = group.size
    routes = [(i, (i + 1) % n) for i in range(n)]

    def function(x):
        return (
            lax.ppermute(x, AXIS, routes),
            lax.ppermute(x[:, :1] * 2, AXIS, routes),
            lax.ppermute(x, AXIS, [(0, 1)]),
        )

    plain, result, found = both(function, group, split=[rows(group, 3)])
    assert found == ["collective_permute"] * 2
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_the_same_sum_twice_is_one(group):
    _, result, found = both(
        lambda x: (lax.psum(x, AXIS), lax.psum(x, AXIS)), group, split=[rows(group, 3)]
    )
    assert found == ["all_reduce"]
    np.testing.assert_array_equal(*result)


def test_what_nobody_needs_is_not_sent(group):
    def function(x):
        lax.psum(x, AXIS)
        return x * 2

    assert both(function, group, split=[rows(group, 3)])[2] == []


def test_groups_of_replicas_are_left_alone():
    group = ReplicaGroup.of(jax.devices()[:4])
    pairs = [[0, 1], [2, 3]]

    def function(x):
        one = lax.psum(x, AXIS, axis_index_groups=pairs)
        return one, lax.psum(x * 2, AXIS, axis_index_groups=pairs), lax.pmean(one, AXIS)

    plain, result, found = both(function, group, split=[rows(group, 3)])
    assert found == ["all_reduce"] * 3
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_keys_are_gathered_as_they_are(group):
    def function(x):
        key = jax.random.fold_in(jax.random.key(0), lax.axis_index(AXIS))
        keys = lax.all_gather(key[None], AXIS, tiled=True)
        return jax.random.key_data(keys), lax.all_gather(x, AXIS)

    plain, result, _ = both(function, group, split=[rows(group, 3)])
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_array_equal(value, expected)


# --- how it is packed -------------------------------------------------------------------------------


def _sum(x):
    return lax.psum(x, AXIS)


@pytest.mark.parametrize(
    ("packing", "count"),
    [(Packing(), 1), (Packing(1), 1), (Packing(0), 6), (Packing(3), 3), (Packing(None, 24), 3)],
)
def test_packs_as_told(packing, count):
    group = ReplicaGroup.of(jax.devices()[:2])

    def function(x):
        return [in_packs(packing, _sum, x[0] * i) for i in range(6)]

    plain, result, found = both(function, group, split=[rows(group, 3)])
    assert found == ["all_reduce"] * count
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_packed_otherwise_means_apart():
    group = ReplicaGroup.of(jax.devices()[:2])

    def function(x):
        return _sum(x), in_packs(Packing(1), _sum, x * 2), _sum(x * 3)

    assert both(function, group, split=[rows(group, 3)])[2] == ["all_reduce"] * 2


# --- what is equal already -----------------------------------------------------------------------


def test_what_is_equal_is_not_reduced(group):
    def function(w):
        x = jnp.tanh(w) * 2
        return (
            lax.psum(x, AXIS),
            lax.pmean(x, AXIS),
            lax.pmin(x, AXIS),
            lax.pmax(x, AXIS),
            lax.all_gather(x, AXIS),
            lax.all_gather(x, AXIS, tiled=True),
        )

    w = rows(group, 3)[0]
    _, result, found = both(function, group, whole=[w])
    assert found == []
    x = np.asarray(jax.jit(lambda w: jnp.tanh(w) * 2)(w))
    total, mean, least, most, gathered, tiled = (np.asarray(r[0]) for r in result)
    np.testing.assert_array_equal(total, x * np.float32(group.size))
    for value in (mean, least, most):
        np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(gathered, np.stack([x] * group.size))
    np.testing.assert_array_equal(tiled, np.concatenate([x] * group.size))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16", "bfloat16", "complex64"])
def test_sums_of_equal_values_in_any_dtype(group, dtype):
    values = jnp.asarray([100, 3, 1, 0], dtype)
    plain, result, found = both(lambda w: lax.psum(w, AXIS), group, whole=[values])
    np.testing.assert_array_equal(result[0], plain[0])
    assert result[0].dtype == plain[0].dtype
    assert found == (["all_reduce"] if dtype == "complex64" else [])


def test_whole_numbers_that_overflow_are_divided_as_written(group):
    def function(w):
        return lax.div(lax.psum(w, AXIS), jnp.int8(group.size))

    plain, result, _ = both(function, group, whole=[jnp.asarray([100, 3, -100], jnp.int8)])
    np.testing.assert_array_equal(result[0], plain[0])


def test_what_a_reduction_gave_is_equal(group):
    def function(x, w):
        mean = lax.pmean(x, AXIS)
        return lax.pmean(mean * w, AXIS), lax.psum(jnp.sin(mean), AXIS)

    plain, result, found = both(function, group, split=[rows(group, 3)], whole=[rows(group, 3)[0]])
    assert found == ["all_reduce"]
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def _random(x):
    return jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index(AXIS)), x.shape)


def _called(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _sent(x):
    return lax.ppermute(x, AXIS, [(0, 1)])


def _scattered(x):
    n = lax.axis_size(AXIS)
    return lax.psum_scatter(jnp.stack([x] * n), AXIS, scatter_dimension=0)


def _through_a_loop(x):
    # It differs from the second turn on.
    def body(_, carry):
        return carry[1], carry[0] + lax.axis_index(AXIS)

    return lax.fori_loop(0, 3, body, (x, x))[0]


def _through_a_branch(x):
    return lax.cond(lax.axis_index(AXIS) > 0, jnp.sin, jnp.cos, x)


def _in_reference(x):
    ref = jax.new_ref(jnp.zeros_like(x))
    ref[...] = x * lax.axis_index(AXIS)
    return ref[...]


@pytest.mark.parametrize(
    "differing",
    [
        lambda x: x + lax.axis_index(AXIS),
        _random,
        _called,
        _sent,
        _scattered,
        _through_a_loop,
        _through_a_branch,
        _in_reference,
        jax.checkpoint(lambda x: jnp.sin(x * lax.axis_index(AXIS))),
    ],
)
def test_what_may_differ_is_reduced(group, differing):
    plain, result, found = both(
        lambda w: lax.psum(differing(w), AXIS), group, whole=[rows(group, 3)[0]]
    )
    assert "all_reduce" in found
    np.testing.assert_array_equal(result[0], plain[0])


def test_gradients_that_come_back_through_equal_values_differ(group):
    def function(x, w):
        gradient = jax.grad(lambda w: (mark_replicated(w) * x[0]).sum())(w)
        return lax.psum(gradient, AXIS)

    plain, result, found = both(function, group, split=[rows(group, 3)], whole=[rows(group, 3)[0]])
    assert found == ["all_reduce"]
    np.testing.assert_array_equal(result[0], plain[0])


# --- loops, branches, effects ----------------------------------------------------------------------


def test_each_body_joins_its_own(group):
    def body(carry, x):
        a, b = carry
        return (lax.pmean(a + x, AXIS), lax.pmean(b * x, AXIS)), (lax.psum(x, AXIS), a)

    def function(x, w):
        carry, stacked = lax.scan(body, (x[0], w), jnp.arange(3.0)[:, None] + x)
        again = lax.while_loop(
            lambda c: (lax.pmax(c[0], AXIS) < 30).all() & (lax.pmax(c[1], AXIS) < 30).all(),
            lambda c: (lax.psum(jnp.abs(c[0]), AXIS) + 1, lax.psum(jnp.abs(c[1]), AXIS) + 1),
            (x[0], w),
        )
        branch = lax.cond(
            lax.pmax(w.sum(), AXIS) > 0,
            lambda v: (lax.psum(v, AXIS), lax.psum(v * 2, AXIS)),
            lambda v: (v, v),
            x[0],
        )
        saved = jax.checkpoint(lambda v: (lax.psum(v, AXIS), lax.psum(v + 1, AXIS)))(x[0])
        return carry, stacked, again, branch, saved

    plain, result, found = both(function, group, split=[rows(group, 3)], whole=[rows(group, 3)[0]])
    # scan, the loop's condition and body, the branch, what is checkpointed
    assert found.count("all_reduce") == 5
    for expected, value in zip(plain, result, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_effects_keep_their_order():
    group = ReplicaGroup.of(jax.devices()[:2])

    def function(x):
        total = lax.psum(x.sum(), AXIS)
        jax.debug.callback(print, total)
        jax.debug.callback(print, x.sum())
        return total, lax.psum(x, AXIS)

    jaxpr = jax.make_jaxpr(function, axis_env=[(AXIS, 2)])(rows(group, 3)[:1])
    run = fuse_collectives(jaxpr, [True], group)
    traced = jax.make_jaxpr(run, axis_env=[(AXIS, 2)])(rows(group, 3)[:1])
    names = [
        e.primitive.name for e in traced.eqns if e.primitive.name in ("psum", "debug_callback")
    ]
    assert names == ["psum", "debug_callback", "debug_callback"]
    callbacks = [e for e in traced.eqns if e.primitive.name == "debug_callback"]
    parts = ("reshape", "squeeze")
    received = {id(v) for e in traced.eqns if e.primitive.name in parts for v in e.outvars}
    assert [id(e.invars[0]) in received for e in callbacks] == [True, False]
