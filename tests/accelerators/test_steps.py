"""Steps of this library cost on TPU and GPU what the same steps written by hand do."""

import functools

import jax
import keras  # now: it sets an environment variable when it is imported
import numpy as np
import pytest
from compiled_text import collectives, exposed, memory, payload
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from steps import (
    LAYERS,
    ROWS,
    WIDTH,
    by_gspmd,
    by_shard_map,
    fifty_layers,
    fifty_layers_loss,
    indexed_scan_loss,
    ours,
    scanned_loss,
    transformer,
    unrolled_loss,
    unstacked,
)
from targets import GPUS, TPUS, devices_of

import stratagem as sg

MODELS = {
    "fifty layers": (fifty_layers, fifty_layers_loss, (128,)),
    "unrolled": (lambda: unstacked(transformer()), unrolled_loss, (128, WIDTH)),
    "scanned": (transformer, scanned_loss, (128, WIDTH)),
}
ONE_OF_EACH = ("v5e:2x4", "h100:1x1x8")
F32 = 4
MATRICES = LAYERS * 12 * WIDTH * WIDTH
FIFTY = 50 * 128 * 128


@functools.cache
def compiled(how, model, target, **options):
    make, loss, row = MODELS[model]
    return how(devices_of(target), make(), loss, row, **options).compile()


@pytest.mark.parametrize("target", [*TPUS, *GPUS])
def test_fifty_variables_with_adam_are_one_all_reduce_and_donated(target):
    own = compiled(ours, "fifty layers", target)
    by_hand = compiled(by_shard_map, "fifty layers", target)
    gspmd = compiled(by_gspmd, "fifty layers", target)

    assert payload(own.as_text()) == payload(by_hand.as_text()) == payload(gspmd.as_text())
    assert len(collectives(own.as_text())) == len(collectives(by_hand.as_text())) == 1
    assert memory(own)["donated"] >= memory(by_hand)["donated"] >= 3 * F32 * FIFTY
    assert memory(own)["temporary"] <= 1.1 * memory(by_hand)["temporary"]


@pytest.mark.parametrize(
    ("model", "target"),
    [("unrolled", "v5e:2x4"), ("unrolled", "h100:1x1x8"), ("scanned", "v5e:2x4")],
)
def test_a_bfloat16_transformer_sends_and_keeps_what_shard_map_does(model, target):
    own = compiled(ours, model, target)
    by_hand = compiled(by_shard_map, model, target)

    assert payload(own.as_text()) == payload(by_hand.as_text())
    assert len(exposed(own.as_text())) <= len(exposed(by_hand.as_text()))
    assert memory(own)["donated"] >= memory(by_hand)["donated"] >= 3 * F32 * MATRICES
    assert memory(own)["temporary"] <= 1.1 * memory(by_hand)["temporary"]


def test_a_gpu_sums_the_gradients_of_a_layer_during_the_layer_before():
    own = compiled(ours, "scanned", "h100:1x1x8")
    sums = [c for c in collectives(own.as_text()) if c.num_bytes > F32]
    # The sums of the last layers have no layer to run during.
    assert all(c.hidden_by for c in sums)
    assert {c.in_loop for c in sums} == {True, False}
    assert {c.num_bytes for c in sums} == {F32 * MATRICES // LAYERS}
    assert memory(own)["donated"] >= 3 * F32 * MATRICES
    by_hand = compiled(by_shard_map, "scanned", "h100:1x1x8")
    [after_loop] = collectives(by_hand.as_text())
    assert after_loop.num_bytes >= F32 * MATRICES
    assert max(c.hidden_by for c in sums) > 3 * after_loop.hidden_by


def test_in_bfloat16_scanned_gradients_are_sent_as_by_gspmd():
    waiting = {
        "xla_gpu_enable_pipelined_all_reduce": False,
        "xla_gpu_enable_while_loop_double_buffering": False,
    }
    own = ours(
        devices_of("h100:1x1x8"),
        transformer(),
        scanned_loss,
        (128, WIDTH),
        wire="bfloat16",
        compiler_options=waiting,
    ).compile()
    gspmd = compiled(by_gspmd, "scanned", "h100:1x1x8")
    assert payload(own.as_text()) == payload(gspmd.as_text())
    assert payload(own.as_text())["all-reduce bf16 in loop"] == 2 * MATRICES // LAYERS
    assert memory(own)["temporary"] <= memory(gspmd)["temporary"]


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_sharded_state_of_scanned_layers_is_scattered_in_the_loop(target):
    own = compiled(ours, "scanned", target, shard_state=True)
    scattered = [c for c in collectives(own.as_text()) if c.kind == "reduce-scatter"]
    assert any(c.in_loop for c in scattered)
    assert max(c.num_bytes for c in scattered) <= F32 * MATRICES // LAYERS
    assert payload(own.as_text())["all-gather f32"] == F32 * MATRICES


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_sharded_optimizer_state_scatters_gradients_and_gathers_values(target):
    own = compiled(ours, "fifty layers", target, shard_state=True)

    sent = payload(own.as_text())
    assert sent["reduce-scatter f32"] == sent["all-gather f32"] == F32 * FIFTY
    assert sent.keys() <= {"reduce-scatter f32", "all-gather f32", "all-reduce f32"}
    assert sent.get("all-reduce f32", 0) <= F32
    # Values are replicated, both moments are sharded.
    assert memory(own)["donated"] == pytest.approx(F32 * FIFTY * (1 + 2 / 8), rel=0.01)


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_fully_sharded_variables_are_gathered_once_where_xla_alone_gathers_more(target):
    own = compiled(ours, "unrolled", target, sharded=True)

    sent = payload(own.as_text())
    # What is computed in bfloat16 is gathered in bfloat16.
    assert sent["all-gather bf16"] == 2 * MATRICES
    assert sent["reduce-scatter f32"] == F32 * MATRICES
    assert memory(own)["donated"] == pytest.approx(3 * F32 * MATRICES / 8, rel=0.01)


def looped_layers(target, **options):
    return ours(
        devices_of(target),
        transformer(),
        indexed_scan_loss,
        (128, WIDTH),
        sharded=True,
        whole_reads=False,
        **options,
    ).compile()


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_fully_sharded_layers_of_a_loop_are_gathered_in_the_loop(target, monkeypatch):
    monkeypatch.setenv(
        "STRATAGEM_REWRITES", "0"
    )  # pipelining moves the first gather out of the loop
    own = looped_layers(target)

    gathered = [c for c in collectives(own.as_text()) if c.kind == "all-gather"]
    assert gathered
    assert all(c.in_loop for c in gathered)
    assert max(c.num_bytes for c in gathered) <= 2 * MATRICES // LAYERS
    assert all(c.in_loop for c in collectives(own.as_text()) if c.kind == "reduce-scatter")


def test_a_gpu_gathers_the_weights_of_the_next_layer_during_a_layer(monkeypatch):
    def gathers(**options):
        found = collectives(looped_layers("h100:1x1x8", **options).as_text())
        return [c for c in found if c.kind == "all-gather"]

    pipelined = gathers()
    assert any(not c.in_loop for c in pipelined)  # those of the first layer
    assert max(c.num_bytes for c in pipelined) <= 2 * MATRICES // LAYERS
    off = {
        "xla_gpu_enable_pipelined_all_gather": False,
        "xla_gpu_enable_while_loop_double_buffering": False,
    }
    waiting = gathers(compiler_options=off)
    assert all(c.in_loop for c in waiting)
    assert max(c.hidden_by for c in pipelined) > max(c.hidden_by for c in waiting)
    monkeypatch.setenv("STRATAGEM_REWRITES", "0")
    assert gathers() == waiting


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_sharding_rules_send_and_keep_what_a_mesh_of_three_axes_does(target):
    axes = {"fsdp": 2, "tensor": 2}
    rules = sg.distribute.experimental.ShardingRules(
        {"qkv|up": ("fsdp", "tensor"), "out|down": ("tensor", "fsdp")}, axes=axes
    )

    def by_rules(*args):
        return ours(*args, rules=rules)

    def by_mesh(*args):
        def place(array):
            first = array.shape[0] < array.shape[1]  # of two layers: more columns than rows
            return PartitionSpec(*(axes if first else reversed(axes)))

        return by_gspmd(*args, place, axes)

    own = compiled(by_rules, "unrolled", target)
    by_hand = compiled(by_mesh, "unrolled", target)

    sent, expected = payload(own.as_text()), payload(by_hand.as_text())
    assert sent.keys() == expected.keys()
    # Between replicas only shards of gradients, in float32; by hand XLA sums them in bfloat16.
    assert F32 * MATRICES / 4 <= sent["all-reduce f32"] <= F32 * MATRICES / 4 + 2 * F32
    assert sum(sent.values()) <= 1.06 * sum(expected.values())
    # Values and both moments are sharded over the four devices of a replica.
    assert memory(own)["donated"] == pytest.approx(3 * F32 * MATRICES / 4, rel=0.01)
    assert memory(own)["temporary"] <= 1.1 * memory(by_hand)["temporary"]


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_metrics_that_synchronize_on_read_send_nothing(target):
    strategy = sg.distribute.MirroredStrategy(devices_of(target))
    with strategy.scope():
        mean = sg.metrics.Mean()

    @sg.function
    def step(x):
        strategy.run(lambda x: mean.update_state(x.sum()), args=(x,))

    rows = strategy.experimental_distribute_values_from_function(
        lambda _: np.zeros((8, 128), np.float32)
    )
    assert collectives(step.lower(rows).compile().as_text()) == []


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_gather_is_one_all_gather(target):
    strategy = sg.distribute.MirroredStrategy(devices_of(target))
    rows = strategy.experimental_distribute_values_from_function(
        lambda _: np.zeros((8, 128), np.float32)
    )
    own = sg.function(lambda x: strategy.gather(x, axis=0)).lower(rows).compile()

    mesh = Mesh(np.array(devices_of(target)), ("replica",))
    by_hand = (
        jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
        .lower(jax.ShapeDtypeStruct((64, 128), np.float32, sharding=NamedSharding(mesh, ROWS)))
        .compile()
    )
    assert (
        payload(own.as_text()) == payload(by_hand.as_text()) == {"all-gather f32": F32 * 64 * 128}
    )


@pytest.mark.parametrize("target", ONE_OF_EACH)
def test_a_step_of_keras_fit_reduces_its_gradients_once(target, monkeypatch):
    from stratagem._src.integrations.keras import step_program

    lowered = []

    def lower(*args):
        lowered.append(original(*args))
        return lowered[-1]

    original = step_program.lower_jitted
    monkeypatch.setattr(step_program, "lower_jitted", lower)
    strategy = sg.distribute.MirroredStrategy(devices_of(target))
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dense(1)])
        model.build((None, 128))
        model.compile("adam", "mse")
    with pytest.raises(sg.errors.DeviceError, match="compiled but not run"):
        model.fit(np.zeros((64, 128)), np.zeros((64, 1)), batch_size=64, verbose=0)

    own = lowered[-1].compile()
    weights = F32 * (128 * 128 + 128 + 128 + 1)
    [(what, sent)] = payload(own.as_text()).items()
    assert what == "all-reduce f32"
    assert weights <= sent <= weights + 64
    assert memory(own)["donated"] >= 3 * weights
