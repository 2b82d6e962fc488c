import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.training.gradient_clipping import Clipping
from stratagem._src.training.loss_scaling import LossScale

Optimizer = sg.train.Optimizer


def test_pytrees_pairs_and_known_variables():
    model = {"w": sg.Variable([1.0, 1.0], name="w"), "rest": (sg.Variable(1.0, name="b"),)}
    optimizer = Optimizer(optax.adam(0.1))
    gradients = {"w": np.ones(2, np.float32), "rest": (2.0,)}
    with pytest.raises(sg.errors.VariableError, match=r"call optimizer\.build"):
        optimizer.apply(gradients)
    optimizer.apply(gradients, model)
    optimizer.apply(gradients)
    optimizer.apply_gradients([(2.0, model["rest"][0]), (np.ones(2), model["w"])])
    assert int(optimizer.iterations) == 3
    assert [v.name for v in optimizer.variables] == [
        "optimizer/iterations:0",
        "optimizer/count:0",
        "optimizer/mu/b:0",
        "optimizer/mu/w:0",
        "optimizer/nu/b:0",
        "optimizer/nu/w:0",
    ]
    with pytest.raises(sg.errors.VariableError, match="same structure"):
        optimizer.apply([1.0], model)
    with pytest.raises(sg.errors.VariableError, match="got ndarray"):
        optimizer.build([np.ones(2)])


def test_none_without_a_variable_is_part_of_the_structure():
    model = {"w": sg.Variable(1.0), "activation": None, "b": sg.Variable(1.0)}
    optimizer = Optimizer(optax.sgd(0.5))
    optimizer.apply({"w": 1.0, "activation": None, "b": None}, model)
    assert (float(model["w"]), float(model["b"])) == (0.5, 1.0)
    with pytest.raises(sg.errors.VariableError, match="same structure"):
        optimizer.apply({"w": 1.0, "activation": 1.0, "b": None}, model)


def test_learning_rate_of_a_transformation():
    w = sg.Variable(1.0)
    hidden = Optimizer(optax.sgd(0.5))
    with pytest.raises(AttributeError, match=r"Optimizer\(optax\.adam, learning_rate=1e-3\)"):
        hidden.learning_rate  # noqa: B018
    shown = Optimizer(optax.inject_hyperparams(optax.sgd)(learning_rate=0.5))
    shown.build([w])
    shown.learning_rate = 0.25
    shown.apply([1.0], [w])
    assert float(w) == 0.75


def test_schedules_are_part_of_the_program():
    optimizer = Optimizer(optax.sgd, learning_rate=lambda step: 1.0 / (step + 1))
    w = sg.Variable(0.0)
    rates = []
    for _ in range(3):
        rates.append(float(optimizer.learning_rate))
        optimizer.apply([-1.0], [w])
    assert rates == pytest.approx([1, 1 / 2, 1 / 3])
    assert float(w) == pytest.approx(sum(rates))
    for value in (0.1, lambda step: 0.1):
        with pytest.raises(ValueError, match="schedule"):
            optimizer.learning_rate = value


def test_numbers_that_would_be_compiled_in_are_refused():
    w = sg.Variable(1.0)
    optimizer = Optimizer(optax.sgd, learning_rate=0.5, loss_scale=8.0)

    @sg.function
    def step():
        return optimizer.learning_rate * 1

    with pytest.raises(sg.errors.ContextError, match=r"build\(variables\)"):
        step()
    with pytest.raises(sg.errors.VariableError, match=r"build\(variables\)"):
        optimizer.scale_loss(1.0)
    optimizer.build(w)
    assert float(step()) == 0.5
    optimizer.learning_rate = 0.25
    assert float(step()) == 0.25
    assert float(optimizer.scale_loss(jnp.float32(2))) == 16
    optimizer.apply(8.0, w)
    assert float(w) == 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.1}, "optax.adam, learning_rate"),
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "Only one of"),
        ({"global_clipnorm": -1.0}, "global_clipnorm must be positive"),
        ({"gradient_accumulation_steps": 0}, "got 0"),
        ({"loss_scale": "static"}, "'dynamic' or a positive number"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Optimizer(optax.sgd(0.1), **options)


def test_clipping():
    slices = sg.IndexedSlices(jnp.array([[3.0], [1.0], [3.0]]), jnp.array([5, 2, 5]), (8, 1))
    dense = jnp.array([8.0], jnp.float16)

    def rows(gradient):
        return gradient.to_dense().reshape(-1).tolist()

    by_value = Clipping(clipvalue=4.0).apply([slices, dense])
    assert rows(by_value[0]) == [0, 0, 1, 0, 0, 4, 0, 0]
    assert by_value[1].tolist() == [4]
    by_norm = Clipping(clipnorm=np.sqrt(37) / 2).apply([slices, dense])
    np.testing.assert_allclose(rows(by_norm[0]), [0, 0, 0.5, 0, 0, 3, 0, 0], rtol=1e-6)
    norm = np.sqrt(37 + 64)
    together = Clipping(global_clipnorm=norm / 4).apply([slices, dense])
    np.testing.assert_allclose(rows(together[0]), [0, 0, 0.25, 0, 0, 1.5, 0, 0], rtol=1e-6)
    assert (together[1].dtype, together[1].tolist()) == (jnp.float16, [2])
    within = Clipping(global_clipnorm=norm * 2).apply([slices, dense])
    assert rows(within[0]) == [0, 0, 1, 0, 0, 6, 0, 0]


def test_loss_scale_grows_and_shrinks():
    scale = LossScale(8.0, dynamic=True, growth_steps=2)
    factor, steps = jnp.float32(8), jnp.int32(0)
    factor, steps = scale.after_finite(factor, steps)
    assert (float(factor), int(steps)) == (8, 1)
    factor, steps = scale.after_finite(factor, steps)
    assert (float(factor), int(steps)) == (16, 0)
    factor, steps = scale.after_overflow(factor, jnp.int32(1))
    assert (float(factor), int(steps)) == (8, 0)
    largest = jnp.float32(np.finfo(np.float32).max)
    assert float(scale.after_finite(largest, jnp.int32(1))[0]) == float(largest)


def test_half_precision_variables_keep_their_types():
    w = sg.Variable(np.ones(2, np.float16))
    optimizer = Optimizer(
        optax.adam, learning_rate=0.1, loss_scale="dynamic", gradient_accumulation_steps=2
    )
    optimizer.build([w])
    dtypes = [v.dtype for v in optimizer.variables]
    before = w.numpy()
    for _ in range(2):
        _, gradients = sg.value_and_grad(lambda: optimizer.scale_loss(jnp.sum(w * 1e-3)), [w])()
        optimizer.apply(gradients)
    assert int(optimizer.iterations) == 1
    assert [v.dtype for v in optimizer.variables] == dtypes
    assert w.dtype == np.float16
    assert (w.numpy() < before).all()


class _Counting(sg.distribute.ReductionToOneDevice):
    """Notes when something is reduced, also in programs."""

    def __init__(self):
        super().__init__()
        self.reduced = []

    def reduce_implementation(self, reduce_op, value, destinations, options):
        jax.debug.callback(lambda: self.reduced.append(reduce_op))
        return super().reduce_implementation(reduce_op, value, destinations, options)


@pytest.mark.parametrize("prepare", [lambda step: step, sg.function], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("loss_scale", "exchanges"), [(None, [False, False, True]), (2.0, [True, True, True])]
)
def test_replicas_exchange_accumulated_gradients_once_for_each_update(
    prepare, loss_scale, exchanges
):
    ops = _Counting()
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], ops)
    with strategy.scope():
        w = sg.Variable(np.ones((200, 100), np.float32))
    optimizer = sg.train.Optimizer(
        optax.sgd(1.0), gradient_accumulation_steps=3, loss_scale=loss_scale
    )
    optimizer.build([w])

    def step(x):
        _, gradient = sg.value_and_grad(lambda: optimizer.scale_loss((w @ x).sum()), w)()
        optimizer.apply([gradient], [w])

    train = prepare(lambda x: strategy.run(step, (x,)))
    for exchange in exchanges:
        ops.reduced.clear()
        train(jnp.ones((100, 4)))
        jax.effects_barrier()
        assert bool(ops.reduced) == exchange
    np.testing.assert_allclose(w.numpy(), np.full((200, 100), 1.0 - 2 * 4))
