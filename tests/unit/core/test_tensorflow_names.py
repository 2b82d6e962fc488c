"""Names of TensorFlow that are not here raise errors that say what to write, and that is true."""

import copy
import importlib
import pickle
import re
import subprocess
import sys

import numpy as np
import optax
import pytest

import stratagem as sg
import stratagem.keras  # here, for Keras sets environment variables when it is imported
from stratagem._src.core.tensorflow_names import TRANSLATIONS

_DOTTED = re.compile(r"(?<![\w.])(?:sg|jax|numpy|optax)(?:\.[A-Za-z_]\w*)+")


def error_of(full_name):
    """Returns the message of the error that ``tf.full_name`` ends in."""
    found = sg
    try:
        for name in full_name.split("."):
            found = getattr(found, name)
    except AttributeError as error:
        return str(error)
    pytest.fail(f"sg.{full_name} exists: take it out of the table of TensorFlow's names")


def resolve(dotted):
    root, *names = dotted.split(".")
    found = sg if root == "sg" else importlib.import_module(root)
    path = found.__name__
    for name in names:
        path = f"{path}.{name}"
        if not hasattr(found, name):
            importlib.import_module(path)
        found = getattr(found, name)
    return found


def test_every_name_says_its_translation():
    """Also: none of them hides a name that exists."""
    for name, translation in TRANSLATIONS.items():
        message = error_of(name)
        if translation not in message:  # listed by the names that are the same
            module, _, same_name = translation.rpartition(".")
            line = next(line for line in message.splitlines() if f"same names of {module}:" in line)
            assert same_name in re.split(r"[:,] ", line)[1:], name


def test_every_name_in_a_translation_exists():
    dotted = {found for text in TRANSLATIONS.values() for found in _DOTTED.findall(text)}
    assert len(dotted) > 60
    for name in sorted(dotted):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "translation"),
    [
        ("set_random_seed", "sg.random.set_seed"),
        ("hessians", "jax.hessian"),
        ("estimator.Estimator", "sg.function"),
        ("train.Saver", "sg.train.Checkpoint"),
        ("autograph.to_graph", "jax.lax.while_loop"),
        ("metrics.Precision", "sg.keras.metrics.Precision"),
        ("metrics.CategoricalAccuracy", "sg.metrics.MeanMetricWrapper"),
        ("variable_creator_scope", "strategy.scope()"),
        ("types.experimental.TensorLike", "jax.typing.ArrayLike"),
        ("quantization.quantize", "model.quantize"),
        ("reduce_sums", "Did you mean 'reduce_sum'?"),
    ],
)
def test_name_that_people_write(name, translation):
    assert translation in error_of(name)


@pytest.mark.parametrize(
    "module", [sg, sg.data, sg.train, sg.io, sg.config], ids=lambda m: m.__name__
)
def test_other_names_are_the_ordinary_error(module):
    assert not hasattr(module, "nothing")
    assert getattr(module, "nothing", 3) == 3
    with pytest.raises(
        AttributeError, match=f"^module '{module.__name__}' has no attribute 'nothing'$"
    ):
        _ = module.nothing


def test_close_names_are_suggested():
    assert error_of("Varible").endswith("Did you mean 'Variable'?")
    assert error_of("data.Datset").endswith("Did you mean 'Dataset'?")


@pytest.mark.parametrize(
    ("owner", "name", "translation"),
    [
        (sg.data.Dataset.range(2), "sparse_batch", "padded_batch"),
        (sg.data.Dataset.range(2), "rejection_resample", "sample_from_datasets"),
        (sg.function(len), "get_concrete_function", "sg.saved_model.save"),
        (sg.train.Optimizer(optax.sgd(0.1)), "minimize", "sg.value_and_grad"),
        (sg.train.Optimizer(optax.sgd(0.1)), "lr", "learning_rate"),
    ],
    ids=["sparse_batch", "rejection_resample", "get_concrete_function", "minimize", "lr"],
)
def test_methods_that_people_call(owner, name, translation):
    assert not hasattr(owner, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}'. Use .*{translation}"):
        getattr(owner, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = owner.nothing


def test_methods_of_arrays_that_per_replica_values_do_not_have():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = strategy.experimental_distribute_values_from_function(lambda _: np.ones(2))
    for name in "numpy", "shape", "dtype":
        assert not hasattr(value, name)
        with pytest.raises(AttributeError, match=r"one value for each replica.*strategy.reduce"):
            getattr(value, name)


def test_plain_classes_are_saved_by_their_attributes(tmp_path):
    class Model:
        def __init__(self):
            self.w = sg.Variable(1.0)

    model = Model()
    with pytest.raises(ValueError, match=r"pass vars\(object\)"):
        sg.train.Checkpoint(model=model)
    path = sg.train.Checkpoint(model=vars(model)).save(tmp_path / "saved")
    model.w.assign(5.0)
    sg.train.Checkpoint(model=vars(model)).restore(path)
    assert float(model.w) == 1.0


def test_arguments_of_the_wrong_kind():
    with pytest.raises(sg.errors.DeviceError, match=r"names such as .*, got 2\."):
        sg.distribute.MirroredStrategy(2)
    for value in "s", b"s", ["s"]:
        with pytest.raises(sg.errors.VariableError, match="numbers or booleans"):
            sg.Variable(value)


def test_string_is_a_type():
    assert sg.TensorSpec((), sg.string) == sg.TensorSpec((), "string")
    assert sg.data.Dataset.from_tensors("s").element_spec.dtype == sg.string


def test_translated_names_are_absent_to_python():
    assert not hasattr(sg, "hessians")
    assert getattr(sg, "estimator", None) is None
    assert not {"hessians", "estimator", "Session"} & set(dir(sg))
    with pytest.raises(ImportError):
        from stratagem import hessians  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("stratagem.nothing")
    assert copy.copy(sg.Variable) is sg.Variable
    assert pickle.loads(pickle.dumps(sg.TensorShape([1]))) == sg.TensorShape([1])


def test_table_is_loaded_by_the_first_mistake_only():
    program = (
        "import sys, stratagem as sg; sg.Variable; hasattr(sg, '__wrapped__'); "
        "before = 'stratagem._src.core.tensorflow_names' in sys.modules; hasattr(sg, 'hessians'); "
        "print(before, 'stratagem._src.core.tensorflow_names' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]
