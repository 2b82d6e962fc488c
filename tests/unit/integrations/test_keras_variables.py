"""Keras variables whose value is that of a variable of ours."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem._src.jax_compat import host_random

keras = sg.keras

# Of ordinary Keras variables, in NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture
def mirrored():
    return sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def dense(**options):
    layer = keras.layers.Dense(2, **options)
    layer.build((None, 3))
    return layer


def test_variables_of_a_scope_are_the_strategys(mirrored):
    with mirrored.scope():
        layer = dense()
        metric = keras.metrics.Mean()
        optimizer = keras.optimizers.Adam()
        optimizer.build(layer.trainable_variables)
    for variable in [*layer.variables, *metric.variables, *optimizer.variables]:
        assert isinstance(variable, keras.Variable)
        assert variable.strategy is mirrored
        assert mirrored.extended.variable_created_in_scope(variable)
    assert len(mirrored.experimental_local_results(layer.kernel)) == 2
    assert layer.kernel.twin.name == f"{layer.kernel.path}:0"


def test_keras_and_the_twin_see_the_same_value(mirrored):
    with mirrored.scope():
        layer = dense()
    layer.kernel.assign(np.full((3, 2), 2.0))
    layer.kernel.assign_add(np.ones((3, 2)))
    assert float(layer.kernel.twin.read_value()[0, 0]) == 3
    layer.kernel.twin.assign_sub(np.ones((3, 2)))
    assert float(layer.kernel.value[0, 0]) == 2
    assert layer.get_weights()[0].tolist() == [[2, 2]] * 3
    layer.set_weights([np.zeros((3, 2)), np.ones(2)])
    assert layer(np.ones((1, 3))).tolist() == [[1, 1]]
    layer.kernel._value = None  # as Keras' trainer does while it works
    assert layer.kernel.value.tolist() == [[0, 0]] * 3


def test_functional_models_are_built_in_a_scope(mirrored):
    with mirrored.scope():
        inputs = keras.Input((3,))
        hidden = keras.layers.BatchNormalization()(keras.layers.Dense(2)(inputs))
        model = keras.Model(inputs, hidden)
    assert model(np.ones((2, 3))).shape == (2, 2)
    assert {variable.strategy for variable in model.variables} == {mirrored}


def test_models_go_in_and_out_of_scopes_by_saving(mirrored, tmp_path):
    with mirrored.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        copied = copy.deepcopy(model)
        cloned = keras.models.clone_model(model)
    model.save(tmp_path / "model.keras")
    outside = keras.models.load_model(tmp_path / "model.keras")
    with mirrored.scope():
        inside = keras.models.load_model(tmp_path / "model.keras")
        from_outside = copy.deepcopy(outside)
    x = np.arange(6.0).reshape(2, 3)
    for other in (outside, inside, copied, from_outside):
        np.testing.assert_allclose(other(x), model(x), rtol=1e-6)
    assert not hasattr(outside.weights[0], "strategy")
    for other in (inside, copied, cloned, from_outside):
        assert other.weights[0].strategy is mirrored
    copied.weights[0].assign(np.zeros((3, 2)))
    assert float(np.abs(model.weights[0].value).sum()) > 0


def test_variables_of_other_classes_are_refused(mirrored):
    class Special(keras.Variable):
        pass

    with mirrored.scope(), pytest.raises(NotImplementedError, match="got Special"):
        Special(1.0)
    assert float(Special(1.0).value) == 1


def test_keras_alone_is_left_alone():
    layer = dense()
    assert type(layer.kernel) is keras.Variable
    assert not hasattr(layer.kernel, "twin")

    @jax.jit
    def functional(values, x):
        return layer.stateless_call(values, [], x)[0]

    x = np.ones((1, 3), "float32")
    values = [variable.value for variable in layer.variables]
    np.testing.assert_allclose(functional(values, x), layer(x), rtol=1e-6)


def test_functions_of_no_strategy_read_and_write_ordinary_variables():
    layer, metric = dense(), keras.metrics.Sum()
    optimizer = keras.optimizers.SGD(0.5)

    @sg.function
    def step(x):
        loss, gradients = sg.value_and_grad(
            lambda: keras.ops.sum(layer(x)), layer.trainable_variables
        )()
        optimizer.apply(gradients, layer.trainable_variables)
        metric.update_state(loss)
        return loss

    before = layer.bias.value.tolist()
    x = np.ones((1, 3), "float32")
    losses = [float(step(x)) for _ in range(2)]
    assert losses[1] == pytest.approx(losses[0] - 2 * 0.5 * (3 + 1))
    assert layer.bias.value.tolist() == [b - 1 for b in before]
    assert int(optimizer.iterations) == 2
    assert float(metric.result()) == pytest.approx(sum(losses))


def test_private_names_of_keras_are_there():
    from stratagem._src.integrations.keras import keras_internals

    for name in keras_internals.__all__:
        assert getattr(keras_internals, name) is not None
    assert keras_internals.OPTIMIZER is not keras.Optimizer
    with keras.StatelessScope([(variable := keras.Variable(1.0), np.float32(2))]):
        assert keras_internals.in_stateless_scope()
        assert float(keras_internals.stateless_value(variable)) == 2
    assert keras_internals.stateless_value(variable) is None


def test_a_variable_of_a_scope_is_a_variable_of_this_library(mirrored):
    with mirrored.scope():
        layer = dense(kernel_initializer="ones")
    kernel = layer.kernel
    assert isinstance(kernel, sg.Variable)
    assert not isinstance(dense().kernel, sg.Variable)
    assert not isinstance(kernel.value, sg.Variable)
    assert kernel.read_value().tolist() == kernel.value.tolist()
    assert kernel.sparse_read([0]).shape == (1, 2)
    kernel.scatter_add(sg.IndexedSlices(np.ones((1, 2), np.float32), [2]))
    assert kernel.numpy()[:, 0].tolist() == [1, 1, 2]
    assert len(kernel.values) == 2
    assert kernel.distribute_strategy is mirrored
    with pytest.raises(AttributeError, match="no attribute 'commit'"):
        kernel.commit(np.ones((3, 2)))


def test_functions_of_jax_take_variables_of_a_scope(mirrored):
    with mirrored.scope():
        layer = dense(kernel_initializer="ones")
    kernel = layer.kernel
    assert jnp.sum(jnp.square(kernel)) == 6
    assert not jnp.not_equal(kernel, 1).any()
    assert jax.jit(lambda x: x + 1)(kernel).tolist() == [[2, 2]] * 3
    assert jnp.concatenate([kernel, kernel]).shape == (6, 2)

    def replica_step():
        _, gradient = sg.value_and_grad(lambda: jnp.sum(jnp.square(kernel)), kernel)()
        with sg.GradientTape() as tape:
            penalty = sum(jnp.sum(jnp.square(v)) for v in layer.trainable_variables)
        return gradient, tape.gradient(penalty, kernel)

    for run in (mirrored.run, sg.function(lambda fn: mirrored.run(fn))):
        for gradient in run(replica_step):
            for part in mirrored.experimental_local_results(gradient):
                np.testing.assert_array_equal(part, np.full((3, 2), 2.0))


def test_arguments_that_are_variables_stay_variables(mirrored):
    with mirrored.scope():
        kernel = dense(kernel_initializer="zeros").kernel

    def add(strategy, variables, gradients):
        gradients = strategy.extended.reduce_to("SUM", gradients[0], variables[0])
        variables[0].assign_add(gradients.values[0])

    def replica_step(variables):
        context = sg.distribute.get_replica_context()
        context.merge_call(add, args=(variables, [jnp.ones((3, 2))]))

    for run in (mirrored.run, sg.function(lambda fn, args: mirrored.run(fn, args=args))):
        run(replica_step, args=([kernel],))
    np.testing.assert_array_equal(kernel, np.full((3, 2), 4.0))


@pytest.mark.peer("tensorflow")  # without which Keras has no JaxLayer
def test_a_jax_layer_has_variables_of_the_scope(mirrored):
    def init(rng, inputs):
        return {"w": jax.random.normal(rng, (inputs.shape[-1], 2))}, {"calls": jnp.zeros(())}

    def call(params, state, inputs):
        return inputs @ params["w"], {"calls": state["calls"] + 1}

    with mirrored.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.JaxLayer(call, init)])
        model.compile("sgd", "mse")
    assert [v.strategy for v in model.trainable_variables] == [mirrored]
    before = model.get_weights()[0]
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    assert np.abs(model.get_weights()[0] - before).max() > 0


def test_an_error_of_jax_in_a_layer_says_what_is_wrong(mirrored):
    class Branching(keras.layers.Layer):
        def call(self, x):
            return x if jnp.sum(x) > 0 else -x

    with mirrored.scope():
        layer = Branching()
    with pytest.raises(Exception, match="traced array"):
        sg.function(lambda: mirrored.run(lambda: layer(jnp.ones(2))))()


def test_layers_are_built_while_a_program_is_traced(mirrored):
    host_random._rounds_once.cache_clear()
    with mirrored.scope():
        layer = keras.layers.Dense(2)
    assert sg.function(lambda: layer(jnp.ones((1, 3))))().shape == (1, 2)
    assert layer.kernel.strategy is mirrored


class Counting(keras.layers.Layer):
    def build(self, input_shape):
        options = {"shape": (), "initializer": "zeros", "trainable": False}
        enums = sg.VariableAggregation
        self.total = self.add_weight(aggregation=enums.SUM, **options)
        self.first = self.add_weight(aggregation=enums.ONLY_FIRST_REPLICA, **options)

    def call(self, x):
        replica = sg.distribute.get_replica_context().replica_id_in_sync_group
        self.total.assign_add(1.0)
        self.first.assign(keras.ops.cast(replica, "float32") + 5)
        return x


def test_weights_take_aggregations_of_this_library(mirrored):
    with mirrored.scope():
        layer = Counting()
        layer.build((2,))
        by_synchronization = keras.Variable(
            0.0,
            synchronization=sg.VariableSynchronization.ON_READ,
            aggregation=sg.VariableAggregation.SUM,
        )
    mirrored.run(lambda: layer(jnp.ones((1, 2))))
    assert (float(layer.total.value), float(layer.first.value)) == (2, 5)
    assert by_synchronization.twin.synchronization is sg.VariableSynchronization.ON_READ
    outside = keras.Variable(0.0, aggregation=sg.VariableAggregation.MEAN)
    assert outside.aggregation == "mean"


def test_operators_of_numpy_take_traced_variables():
    with sg.distribute.MirroredStrategy(["CPU:0"]).scope():
        kernel = keras.Variable(np.full(2, 3.0, np.float32))

    @sg.function
    def gradient():
        with sg.GradientTape() as tape:
            loss = jnp.sum(np.float64(2) * kernel - np.ones(2, np.float32) / kernel)
        return tape.gradient(loss, kernel)

    np.testing.assert_allclose(gradient(), [2 + 1 / 9] * 2, rtol=1e-6)
