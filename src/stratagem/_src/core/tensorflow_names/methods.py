"""Replacements for methods of TensorFlow's and PyTorch's classes that the classes here do not have."""

__all__ = ["METHODS"]

METHODS: dict[str, str] = {
    "Dataset.make_initializable_iterator": "iter(dataset)",
    "Dataset.make_one_shot_iterator": "iter(dataset)",
    "Dataset.rejection_resample": (
        "sg.data.Dataset.sample_from_datasets([dataset.filter(f) for f in filters], weights)"
    ),
    "Dataset.sparse_batch": "dataset.padded_batch(n), or dataset.ragged_batch(n)",
    "Function.get_concrete_function": (
        "the function itself, which is compiled when it is first called with such arguments; to save "
        "one give sg.function an input_signature and use sg.saved_model.save"
    ),
    "Optimizer.add_slot": "a transformation of optax, which keeps what it needs in its state",
    "Optimizer.add_variable": "a transformation of optax, which keeps what it needs in its state",
    "Optimizer.aggregate_gradients": (
        "replica_context.all_reduce(sg.distribute.ReduceOp.SUM, gradients) and "
        "optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)"
    ),
    "Optimizer.compute_gradients": "sg.value_and_grad(compute_loss, variables)()",
    "Optimizer.exclude_from_weight_decay": (
        'sg.train.Optimizer(optax.adamw, learning_rate=rate, exclude_from_weight_decay=["bias"])'
    ),
    "Optimizer.finalize_variable_values": "optax.ema, and assign what it has averaged",
    "Optimizer.get_config": "the arguments that it was made with",
    "Optimizer.get_gradients": "sg.value_and_grad(compute_loss, variables)()",
    "Optimizer.get_scaled_loss": "optimizer.scale_loss(loss)",
    "Optimizer.get_slot": "optimizer.variables, whose names say what they are and for which variable",
    "Optimizer.get_slot_names": "[v.name for v in optimizer.variables]",
    "Optimizer.get_unscaled_gradients": (
        "the gradients as they are: optimizer.apply(gradients, variables) scales them back"
    ),
    "Optimizer.get_weights": "[v.numpy() for v in optimizer.variables]",
    "Optimizer.load_own_variables": "sg.train.Checkpoint(optimizer=optimizer).restore(path)",
    "Optimizer.lr": "optimizer.learning_rate",
    "Optimizer.minimize": (
        "loss, gradients = sg.value_and_grad(compute_loss, variables)() and "
        "optimizer.apply_gradients(zip(gradients, variables))"
    ),
    "Optimizer.save_own_variables": "sg.train.Checkpoint(optimizer=optimizer).save(prefix)",
    "Optimizer.load_state_dict": "sg.train.Checkpoint(optimizer=optimizer).restore(path)",
    "Optimizer.param_groups": (
        "optimizer.learning_rate, and one Optimizer for each group of variables"
    ),
    "Optimizer.set_weights": "v.assign(value) for each v of optimizer.variables",
    "Optimizer.state_dict": "sg.train.Checkpoint(optimizer=optimizer).save(prefix)",
    "Optimizer.stateless_apply": "optimizer.transformation, which is a function of its state",
    "Optimizer.step": "optimizer.apply(gradients, variables)",
    "Optimizer.update_step": "a transformation of optax, such as optax.stateless(function)",
    "Optimizer.weights": "optimizer.variables",
    "Optimizer.zero_grad": (
        "nothing: sg.value_and_grad returns new gradients in each call, and nothing adds them up"
    ),
}
"""The replacement of each method; ``sg`` stands for ``stratagem``."""
