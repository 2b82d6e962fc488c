"""Saved models: what they compute, where they can be loaded, and what is refused."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from jax import export

import stratagem as sg
from stratagem._src.core import errors
from stratagem._src.export import loading

keras = sg.keras  # changes the environment when it is first asked for
SIGNATURE = [sg.TensorSpec([None, 2])]
ROWS = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, -1.0]], np.float32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def strategy():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def small_model():
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((2,)), layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.5)]
    )


class Scaler:
    """Two functions over the same weight."""

    def __init__(self):
        self.w = sg.Variable([2.0, 3.0], name="scale")

    @sg.function(input_signature=SIGNATURE)
    def __call__(self, x):
        return {"scaled": x * self.w, "sums": (x @ self.w, self.w.read_value())}

    @sg.function(input_signature=[sg.TensorSpec([None, 2], name="x"), sg.TensorSpec([])])
    def shifted(self, x, by):
        return x * self.w + by

    @sg.function
    def not_saved(self, x):
        return x


def test_an_object_is_saved_with_all_its_functions(path):
    scaler = Scaler()
    sg.saved_model.save(scaler, path)
    scaler.w.assign([0.0, 0.0])
    loaded = sg.saved_model.load(path)
    assert sorted(loaded.signatures) == ["serving_default", "shifted"]
    result = loaded(ROWS)
    np.testing.assert_array_equal(result["scaled"], ROWS * [2.0, 3.0])
    np.testing.assert_array_equal(result["sums"][0], ROWS @ np.array([2.0, 3.0], np.float32))
    np.testing.assert_array_equal(result["sums"][1], [2.0, 3.0])
    np.testing.assert_array_equal(loaded.signatures["shifted"](x=[[1, 2]], by=10), [[12.0, 16.0]])
    (weight,) = loaded.variables
    weight.assign([1.0, 1.0])
    np.testing.assert_array_equal(loaded(ROWS)["scaled"], ROWS)


def test_a_keras_model_computes_what_it_did(path, strategy):
    with strategy.scope():
        model = small_model()
        model.compile("sgd", "mse")
    model.fit(ROWS, np.ones((3, 3)), verbose=0)
    sg.saved_model.save(model, path)
    loaded = sg.saved_model.load(path)
    np.testing.assert_allclose(loaded(ROWS), model.predict(ROWS, verbose=0), rtol=1e-6)
    assert len(loaded.variables) == len(model.weights)
    assert len(loaded.trainable_variables) == len(model.trainable_weights)


def test_a_keras_model_of_no_scope_and_several_inputs(path):
    one, other = keras.Input((2,), name="one"), keras.Input((2,), name="other")
    both = keras.layers.Concatenate()([one, other])
    model = keras.Model([one, other], {"sum": keras.layers.Dense(1)(both), "both": both})
    sg.saved_model.save(model, path)
    result = sg.saved_model.load(path)(one=ROWS, other=-ROWS)
    expected = model([ROWS, -ROWS])
    np.testing.assert_allclose(result["sum"], expected["sum"], rtol=1e-6)
    np.testing.assert_array_equal(result["both"], expected["both"])


def test_arrays_that_a_function_holds_are_weights(path):
    module = nnx.Linear(2, 4, rngs=nnx.Rngs(0))

    @sg.function(input_signature=SIGNATURE)
    def serve(x):
        return module(x)

    sg.saved_model.save(serve, path)
    loaded = sg.saved_model.load(path)
    np.testing.assert_allclose(loaded(ROWS), module(ROWS), rtol=1e-6)
    assert sorted(tuple(v.shape) for v in loaded.variables) == [(2, 4), (4,)]


def test_weights_of_other_types(path):
    half = sg.Variable(jnp.array([1.5, 2.5], jnp.bfloat16))
    count = sg.Variable(np.int32(3), trainable=False)

    @sg.function(input_signature=SIGNATURE)
    def serve(x):
        return x.astype(jnp.bfloat16) * half, count.read_value()

    sg.saved_model.save(serve, path)
    loaded = sg.saved_model.load(path)
    scaled, number = loaded(ROWS)
    assert scaled.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(np.asarray(scaled, np.float32), ROWS * [1.5, 2.5])
    assert int(number) == 3
    assert [v.trainable for v in loaded.variables] == [True, False]


WITHOUT_THE_LIBRARY = """
import sys
sys.modules["stratagem"] = None
import json, jax, jax.numpy as jnp, numpy as np
from jax import export

path = sys.argv[1]
index = json.load(open(path + "/saved_model.json"))
weights = np.load(path + "/weights.npz")
weights = {n: weights[n].view(jnp.dtype(w["dtype"])) for n, w in index["weights"].items()}
program = export.deserialize(bytearray(open(path + "/signatures/serving_default.jax", "rb").read()))
needed = {n: weights[n] for n in index["signatures"]["serving_default"]["weights"]}
print(np.asarray(program.call(needed, np.ones((4, 2), np.float32))["scaled"]).tolist())
"""


def test_a_program_without_the_library_loads_it(path):
    sg.saved_model.save(Scaler(), path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_LIBRARY, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.strip() == str([[2.0, 3.0]] * 4)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_in_a_scope_each_replica_has_the_weights_and_can_train_them(path, strategy, compiled):
    sg.saved_model.save(Scaler(), path)
    with strategy.scope():
        loaded = sg.saved_model.load(path)
    (weight,) = loaded.variables
    assert isinstance(weight, sg.distribute.DistributedValues)

    def replica_step(x):
        loss, (gradient,) = sg.value_and_grad(lambda: loaded(x)["sums"][0].sum(), [weight])()
        context = sg.distribute.get_replica_context()
        return loss, context.all_reduce("SUM", gradient)

    def step(x):
        return strategy.run(replica_step, args=(x,))

    batch = next(
        iter(
            strategy.experimental_distribute_dataset(
                sg.data.Dataset.from_tensor_slices(np.tile(ROWS, (2, 1))).batch(6)
            )
        )
    )
    loss, gradient = (sg.function(step) if compiled else step)(batch)
    assert [float(value) for value in loss.values] == [float((ROWS @ [2.0, 3.0]).sum())] * 2
    for value in gradient.values:
        np.testing.assert_array_equal(value, 2 * ROWS.sum(0))


def test_open_sizes_stay_open_and_others_do_not(path):
    @sg.function(input_signature=[sg.TensorSpec([None, None, 2])])
    def serve(x):
        return x.sum((1, 2))

    sg.saved_model.save(serve, path)
    loaded = sg.saved_model.load(path)
    for shape in [(1, 1, 2), (3, 5, 2)]:
        assert loaded(np.ones(shape)).tolist() == [2.0 * shape[1]] * shape[0]
    with pytest.raises(errors.SignatureMismatchError, match=r"\(None, None, 2\)"):
        loaded(np.ones((3, 5, 3)))


def test_what_was_there_gives_way(path):
    sg.saved_model.save(Scaler(), path)
    with pytest.raises(errors.InvalidArgumentError):
        sg.saved_model.save(object(), path)
    assert "shifted" in sg.saved_model.load(path).signatures
    sg.saved_model.save(Scaler(), path, signatures={"only": Scaler().shifted})
    loaded = sg.saved_model.load(path)
    assert list(loaded.signatures) == ["only"]
    np.testing.assert_array_equal(loaded([[1, 2]], 0), [[2.0, 6.0]])
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def serving(function, specs=SIGNATURE):
    return sg.function(input_signature=specs)(function)


def test_refusals(path, strategy):
    v = sg.Variable(1.0)
    with strategy.scope():
        partial = sg.Variable(
            0.0,
            synchronization=sg.VariableSynchronization.ON_READ,
            aggregation=sg.VariableAggregation.SUM,
        )
    save = sg.saved_model.save
    with pytest.raises(errors.VariableError, match="updates 'Variable"):
        save(serving(lambda x: v.assign_add(1.0)), path)
    with pytest.raises(errors.VariableError, match="differs between replicas"):
        save(serving(lambda x: x + partial), path)
    with pytest.raises(errors.UnsupportedError, match=r"strategy\.run"):
        save(serving(lambda x: strategy.reduce("SUM", strategy.run(jnp.sum, (x,)), None)), path)
    with pytest.raises(errors.InvalidArgumentError, match="strings"):
        save(serving(lambda x: 0, [sg.TensorSpec([None], "string")]), path)
    with pytest.raises(errors.InvalidArgumentError, match="input_signature"):
        save(None, path, signatures=lambda x: x)
    with pytest.raises(errors.InvalidArgumentError, match="letters"):
        save(None, path, signatures={"../x": serving(lambda x: x)})
    with pytest.raises(errors.InvalidArgumentError, match="inputs"):
        save(keras.Sequential([keras.layers.Dense(1)]), path)
    unbuilt = keras.layers.Dense(1)
    with pytest.raises(errors.VariableError, match="Call the model or function once with example"):
        save(None, path, signatures=serving(lambda x: unbuilt(x), [sg.TensorSpec([None, 2])]))
    assert not path.exists()
    assert float(v) == 1.0


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "weights.npz").write_bytes(b"PK"),
        lambda path: (path / "weights.npz").unlink(),
        lambda path: (path / "signatures" / "shifted.jax").write_bytes(b"\0" * 64),
        lambda path: (path / "signatures" / "shifted.jax").unlink(),
        lambda path: (path / "saved_model.json").write_text("{}"),
        lambda path: (path / "saved_model.json").write_text('{"format": 99}'),
        lambda path: (path / "saved_model.json").write_text("[]"),
        lambda path: (path / "saved_model.json").write_text("[" * 100_000),
    ],
)
def test_damage_is_noticed(path, damage):
    sg.saved_model.save(Scaler(), path)
    damage(path)
    with pytest.raises(errors.DataLossError):
        sg.saved_model.load(path)


# --- models that somebody else made ---------------------------------------------------------------------

CALLBACK = "xla_ffi_python_cpu_callback"


def call_by_name(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.ffi.ffi_call(CALLBACK, shape)(x, index=np.uint64(7))


@jax.custom_vjp
def honest_until_differentiated(x):
    return x * 2


honest_until_differentiated.defvjp(
    lambda x: (x * 2, None), lambda _, cotangent: (call_by_name(cotangent),)
)


@pytest.mark.parametrize(
    ("program", "vjp_order"), [(call_by_name, 0), (honest_until_differentiated, 1)]
)
def test_a_program_that_calls_into_the_process_is_refused(path, monkeypatch, program, vjp_order):
    sg.saved_model.save(Scaler(), path)
    allowed = [export.DisabledSafetyCheck.custom_call(CALLBACK)]
    exported = export.export(jax.jit(lambda weights, x: program(x)), disabled_checks=allowed)(
        {"scale": jax.ShapeDtypeStruct((2,), np.float32)}, jax.ShapeDtypeStruct((3, 2), np.float32)
    )
    data = exported.serialize(vjp_order=vjp_order)
    (path / "signatures" / "serving_default.jax").write_bytes(data)
    monkeypatch.setattr(loading, "Variable", lambda *args, **options: pytest.fail("made"))
    with pytest.raises(errors.InvalidArgumentError, match=f"'serving_default' calls '{CALLBACK}'"):
        sg.saved_model.load(path)


def test_linear_algebra_is_no_foreign_call(path):
    @sg.function(input_signature=[sg.TensorSpec([2, 2])])
    def solve(x):
        return jnp.linalg.solve(x, jnp.ones(2)) + jnp.linalg.eigvalsh(x @ x.T)

    sg.saved_model.save(solve, path)
    matrix = np.array([[2.0, 0.0], [0.0, 4.0]], np.float32)
    np.testing.assert_allclose(sg.saved_model.load(path)(matrix), [4.5, 16.25])


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "..", "a/b", "a\0", "", "a\n"])
def test_a_signature_is_read_from_nowhere_else(path, name):
    sg.saved_model.save(Scaler(), path)
    index = json.loads((path / "saved_model.json").read_text())
    index["signatures"][name] = index["signatures"]["shifted"]
    (path / "saved_model.json").write_text(json.dumps(index))
    program = (path / "signatures" / "shifted.jax").read_bytes()
    (path.parent / "outside.jax").write_bytes(program)
    with pytest.raises(errors.DataLossError, match="which save"):
        sg.saved_model.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": ["x y", "by"]},
        {"parameters": ["x", "x"]},
        {"parameters": [1, 2]},
        {"specs": [1, 2]},
        {"weights": [["scale"]]},
        {"weights": ["other"]},
    ],
)
def test_nonsense_in_the_index_is_noticed(path, change):
    sg.saved_model.save(Scaler(), path)
    index = json.loads((path / "saved_model.json").read_text())
    index["signatures"]["shifted"].update(change)
    (path / "saved_model.json").write_text(json.dumps(index))
    with pytest.raises(errors.DataLossError):
        sg.saved_model.load(path)


def test_there_must_be_something_to_load(path):
    with pytest.raises(FileNotFoundError, match="no saved model in"):
        sg.saved_model.load(path)


def test_one_of_several_signatures_must_be_chosen(path):
    signatures = {"a": serving(lambda x: x), "b": serving(lambda x: -x)}
    sg.saved_model.save(None, path, signatures=signatures)
    loaded = sg.saved_model.load(path)
    with pytest.raises(errors.InvalidArgumentError, match=r"\['a', 'b'\]"):
        loaded(ROWS)
    np.testing.assert_array_equal(loaded.signatures["b"](ROWS), -ROWS)


def test_a_loaded_function_is_a_function_of_jax(path):
    sg.saved_model.save(Scaler(), path)
    loaded = sg.saved_model.load(path)
    gradient = jax.grad(lambda x: loaded(x)["sums"][0].sum())(jnp.asarray(ROWS))
    np.testing.assert_array_equal(gradient, np.tile([2.0, 3.0], (3, 1)))
