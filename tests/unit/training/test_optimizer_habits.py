"""What people write of habit, from TensorFlow's optimizers: it works, or the error says what to write."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.core.tensorflow_names.methods import METHODS


@pytest.fixture
def w():
    return sg.Variable(3.0, name="w")


@pytest.fixture
def optimizer(w):
    made = sg.train.Optimizer(optax.sgd, learning_rate=0.5)
    made.build([w])
    return made


def test_variables_may_be_called(optimizer):
    assert [v.name for v in optimizer.variables()] == [v.name for v in optimizer.variables]
    assert isinstance(optimizer.variables, list)


def test_arguments_of_apply_gradients(optimizer, w):
    optimizer.apply_gradients(zip([2.0], [w], strict=True), name="step")
    optimizer.apply_gradients([[2.0, w]], experimental_aggregate_gradients=False)
    assert float(w) == 1


def test_gradients_that_the_replicas_have_summed():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = sg.Variable(0.0)
    optimizer = sg.train.Optimizer(optax.sgd(1.0))

    def step():
        summed = sg.distribute.get_replica_context().all_reduce("SUM", jnp.float32(1.0))
        optimizer.apply_gradients([(summed, w)], skip_gradients_aggregation=True)

    sg.function(lambda: strategy.run(step))()
    assert float(w) == -2.0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (lambda w: [2.0], r"apply_gradients\(zip\(gradients, variables\)\)"),
        (lambda w: [(2.0, w, 1)], "got tuple for a pair"),
        (lambda w: [(w, 2.0)], "The gradient comes first"),
        (lambda w: [(2.0, 2.0)], "got float for a variable.$"),
    ],
)
def test_what_is_no_pair_of_gradient_and_variable(optimizer, w, pairs, message):
    with pytest.raises(sg.errors.VariableError, match=message):
        optimizer.apply_gradients(pairs(w))
    assert float(w) == 3
    assert int(optimizer.iterations) == 0


NAMES = [name.partition(".")[2] for name in METHODS if name.startswith("Optimizer.")]


@pytest.mark.parametrize("name", NAMES)
def test_other_names_say_what_to_write(optimizer, name):
    with pytest.raises(AttributeError, match=r"has no attribute .* Use "):
        getattr(optimizer, name)
    with pytest.raises(AttributeError, match=r"has no attribute .* Use "):
        setattr(optimizer, name, 1.0)  # such as optimizer.lr = 0.1, which nothing would read


def test_other_attributes_can_be_set(optimizer):
    optimizer.note = "mine"
    assert optimizer.note == "mine"


@pytest.mark.parametrize("built", [False, True])
def test_iterations_can_be_set(w, built):
    optimizer = sg.train.Optimizer(optax.sgd, learning_rate=lambda step: 1.0 / (1 + step))
    if built:
        optimizer.build([w])
    optimizer.iterations = 3
    assert int(optimizer.iterations) == 3
    optimizer.apply([1.0], [w])
    assert float(w) == 2.75
    assert int(optimizer.iterations) == 4
    optimizer.iterations = np.int64(0)
    optimizer.apply([1.0], [w])
    assert float(w) == 1.75


def test_a_complex_gradient_of_a_real_variable_is_refused():
    w = sg.Variable(np.zeros(3, np.float32), name="w")
    optimizer = sg.train.Optimizer(optax.sgd, learning_rate=1.0)
    with pytest.raises(ValueError, match=r"'w:0', which is float32, must be real, got complex64"):
        optimizer.apply_gradients([(jnp.ones(3, jnp.complex64), w)])
    assert w.numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "name", ["step", "zero_grad", "state_dict", "load_state_dict", "param_groups"]
)
def test_names_of_torch_say_what_to_use(optimizer, name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'. Use "):
        getattr(optimizer, name)


@pytest.mark.parametrize(
    "make",
    [
        lambda w: sg.train.Optimizer([w], lr=0.1),
        lambda w: sg.train.Optimizer({"w": w}, learning_rate=0.1),
        lambda w: sg.train.Optimizer(iter([w])),
        lambda w: sg.train.Optimizer(optax.sgd, lr=0.1),
    ],
)
def test_an_optimizer_created_as_in_torch(w, make):
    with pytest.raises(ValueError, match=r"Write Optimizer\(optax\.adamw, learning_rate=1e-3\)"):
        make(w)


def test_other_variables_of_the_same_names(optimizer):
    with pytest.raises(ValueError, match="other variables of the same names"):
        optimizer.apply([1.0], [sg.Variable(1.0, name="w")])
