"""Flags of XLA for one function: they reach the compiler, and are refused where they could not."""

import pickle

import cloudpickle
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, PartitionSpec

import stratagem as sg
from stratagem._src.execution.compiler_options import options_for

CHEAP = {"xla_backend_optimization_level": 0}
UNKNOWN = {"xla_of_another_world": True}


def double(x):
    return x * 2


def test_options_reach_the_compiler():
    assert float(sg.function(double, compiler_options=CHEAP)(jnp.float32(2))) == 4
    with pytest.raises(Exception, match="xla_of_another_world"):
        sg.function(double, compiler_options=UNKNOWN)(jnp.float32(2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: sg.function(compiler_options=UNKNOWN)(double),
        lambda: sg.function(double, [sg.TensorSpec([], jnp.float32)], compiler_options=UNKNOWN),
        lambda: pickle.loads(cloudpickle.dumps(sg.function(double, compiler_options=UNKNOWN))),
        lambda: (
            type(
                "Holder", (), {"double": sg.function(lambda self, x: x, compiler_options=UNKNOWN)}
            )().double
        ),
    ],
    ids=["decorator", "signature", "pickled", "method"],
)
def test_every_kind_of_function_has_them(make):
    with pytest.raises(Exception, match="xla_of_another_world"):
        make()(jnp.float32(2))


def test_replicas_and_lowered_programs_have_them():
    step = sg.function(double, compiler_options=UNKNOWN)
    with pytest.raises(Exception, match="xla_of_another_world"):
        step.lower(jnp.float32(2)).compile()
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(Exception, match="xla_of_another_world"):
        strategy.run(step, args=(jnp.float32(2),))


def test_they_are_refused_where_they_would_be_ignored():
    inner = sg.function(double, compiler_options=CHEAP)
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for outer in (
        lambda: inner(jnp.float32(2)),
        lambda: strategy.run(inner, args=(jnp.float32(2),)),
    ):
        with pytest.raises(sg.errors.UnsupportedError, match="outermost"):
            sg.function(outer)()
    with pytest.raises(sg.errors.UnsupportedError, match="outermost"):
        jax.jit(inner)(jnp.float32(2))

    @sg.function(compiler_options=CHEAP)
    def epoch(dataset):
        for x in dataset:
            double(x)

    with pytest.raises(sg.errors.UnsupportedError, match="loops over a dataset"):
        epoch(sg.data.Dataset.range(3))


@pytest.mark.parametrize(
    "options", [["xla_a"], {"xla_a": None}, {1: True}, {"--xla_a": True}], ids=str
)
def test_what_is_no_option_is_refused(options):
    with pytest.raises(sg.errors.InvalidArgumentError, match="compiler_options"):
        sg.function(double, compiler_options=options)


# --- the default --------------------------------------------------------------------------------------

GATHER = "xla_gpu_enable_pipelined_all_gather"
SCATTER = "xla_gpu_enable_pipelined_reduce_scatter"
REDUCE = "xla_gpu_enable_pipelined_all_reduce"
BUFFERS = "xla_gpu_enable_while_loop_double_buffering"


def loop_of(collective):
    def replica(x):
        return jax.lax.scan(lambda c, _: (collective(c), None), x, length=3)[0]

    mesh = Mesh(jax.devices()[:1], ("replica",))
    spec = PartitionSpec("replica")
    step = jax.shard_map(replica, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.make_jaxpr(step)(jnp.ones((2, 2))).jaxpr


def gathering(x):
    return jax.lax.all_gather(x, "replica", axis=0, tiled=True)


def scattering(x):
    return jax.lax.psum_scatter(x, "replica", scatter_dimension=0, tiled=True)


@pytest.mark.parametrize(
    ("collective", "flags"),
    [
        (gathering, {GATHER, BUFFERS}),
        (lambda x: scattering(gathering(x)), {GATHER, SCATTER, BUFFERS}),
        (lambda x: x + jax.lax.psum(jnp.zeros((128, 128)), "replica").sum(), {REDUCE, BUFFERS}),
        (lambda x: jax.lax.psum(x, "replica"), set()),
    ],
    ids=["gather", "both", "sum", "small sum"],
)
def test_loops_that_communicate_are_pipelined_on_gpus(collective, flags):
    jaxpr = loop_of(collective)
    assert set(options_for(jaxpr, "gpu", None, pipelined=True) or {}) == flags
    for platform, pipelined in (("gpu", False), ("tpu", True), ("cpu", True)):
        assert options_for(jaxpr, platform, None, pipelined=pipelined) is None


def test_a_choice_of_the_user_wins(monkeypatch):
    jaxpr = loop_of(gathering)
    assert options_for(jaxpr, "gpu", {GATHER: False}, pipelined=True) == {
        GATHER: False,
        BUFFERS: True,
    }
    monkeypatch.setenv("XLA_FLAGS", f"--{BUFFERS}=false")
    assert options_for(jaxpr, "gpu", None, pipelined=True) == {GATHER: True}
