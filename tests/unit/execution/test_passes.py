"""The passes of ``execution/passes.py``, in compiled steps as users write them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.execution import passes
from stratagem._src.execution.program import Program
from stratagem._src.execution.traced_function import platform_of
from stratagem._src.jaxpr.walk import all_equations, inner_jaxprs
from stratagem._src.mesh.replica_group import ReplicaGroup


@pytest.fixture
def compiled(monkeypatch):
    """The StableHLO texts of the programs that are compiled."""
    texts = []
    compile_program = Program._compile

    def note(program, held, arrays, consts):
        texts.append(
            program.jitted.lower(*program.variables.borrow(held), consts, arrays).as_text()
        )
        return compile_program(program, held, arrays, consts)

    monkeypatch.setattr(Program, "_compile", note)
    return texts


STRATEGIES = {
    "no strategy": sg.distribute.get_strategy,
    "one device": lambda: sg.distribute.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
}


def train_dense_layer(strategy):
    """Makes one step of a dense layer on inputs of three dimensions; returns the new kernel."""
    with strategy.scope():
        initial = np.linspace(-1, 1, 30, dtype=np.float32).reshape(6, 5)
        kernel = sg.Variable(initial, aggregation=sg.VariableAggregation.MEAN)

    def replica_step(x):
        gradient = jax.grad(lambda k: jnp.mean(jnp.tanh(x @ k)))(kernel.value())
        kernel.assign_sub(gradient)

    @sg.function
    def step(x):
        strategy.run(replica_step, args=(x,))

    step(jnp.asarray(np.sin(np.arange(72, dtype=np.float32)).reshape(3, 4, 6)))
    return kernel.numpy()


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_gradient_of_a_dense_layer_is_not_transposed(make, compiled, monkeypatch):
    rewritten = train_dense_layer(make())
    [with_rewrites] = compiled
    assert "stablehlo.dot_general" in with_rewrites
    assert "stablehlo.transpose" not in with_rewrites
    compiled.clear()
    monkeypatch.setenv("STRATAGEM_REWRITES", "0")
    expected = train_dense_layer(make())
    [without] = compiled
    assert "stablehlo.transpose" in without
    np.testing.assert_allclose(rewritten, expected, rtol=1e-6, atol=1e-6)


def test_group_normalisation_is_computed_on_channels(compiled, monkeypatch):
    def normalize(x):
        groups = x.reshape(*x.shape[:3], 8, 2)
        return (groups - groups.mean((1, 2, 4), keepdims=True)).reshape(x.shape)

    x = np.sin(np.arange(8 * 8 * 8 * 16, dtype=np.float32)).reshape(8, 8, 8, 16)
    rewritten = sg.function(normalize)(x)
    monkeypatch.setenv("STRATAGEM_REWRITES", "0")
    expected = sg.function(normalize)(x)
    with_rewrites, without = compiled
    difference = re.compile(r"stablehlo.subtract .*tensor<8x8x8x8x2xf32>")
    assert difference.search(without)
    assert not difference.search(with_rewrites)
    np.testing.assert_allclose(rewritten, expected, rtol=1e-5, atol=1e-6)


def test_other_platforms_keep_what_was_traced():
    def gradient(kernel, x):
        return jax.grad(lambda k: jnp.sum(x @ k))(kernel)

    jaxpr = jax.make_jaxpr(gradient)(
        np.ones((6, 5), np.float32), np.ones((3, 4, 6), np.float32)
    ).jaxpr
    assert passes.rewrite_for_platform(jaxpr, "gpu") is jaxpr
    assert passes.rewrite_for_platform(jaxpr, "cpu") is not jaxpr


@pytest.mark.parametrize(
    ("platform", "moved"),
    [("gpu", {"psum", "reduce_scatter"}), ("tpu", {"reduce_scatter"}), ("cpu", set())],
)
def test_gradients_of_scanned_layers_are_summed_in_the_loop(platform, moved, monkeypatch):
    def replica(kernels, x):
        def loss(kernels):
            return jnp.sum(jax.lax.scan(lambda x, k: (jnp.tanh(x @ k), None), x, kernels)[0])

        gradients = jax.grad(loss)(kernels)
        scattered = jax.lax.psum_scatter(
            jax.grad(loss)(kernels), "replica", scatter_dimension=1, tiled=True
        )
        return jax.lax.psum(gradients, "replica"), scattered

    kernels, x = jnp.zeros((2, 512, 512)), jnp.zeros((4, 512))
    jaxpr = jax.make_jaxpr(replica, axis_env=[("replica", 2)])(kernels, x).jaxpr

    def in_loops(jaxpr):
        scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
        found = {e.primitive.name for scan in scans for e in all_equations(inner_jaxprs(scan)[0])}
        return found & {"psum", "reduce_scatter"}

    assert in_loops(passes.rewrite_for_platform(jaxpr, platform)) == moved
    monkeypatch.setenv("STRATAGEM_REWRITES", "0")
    assert passes.rewrite_for_platform(jaxpr, platform) is jaxpr


def test_a_program_runs_where_its_arrays_are():
    cpu = jax.devices("cpu")[0]
    assert platform_of(ReplicaGroup.of([cpu]), []) == "cpu"
    assert platform_of(None, [np.zeros(2), jax.device_put(1.0, cpu)]) == "cpu"
    assert platform_of(None, []) == jax.default_backend()
    with jax.default_device("cpu"):
        assert platform_of(None, []) == "cpu"


def test_each_pass_says_why():
    for rewrite in (*passes.LIFTS, *passes.REWRITES, passes.evaluate):
        assert rewrite.__doc__
        assert len(rewrite.__doc__.splitlines()) == 1
