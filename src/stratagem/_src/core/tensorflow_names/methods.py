"""Methods that objects of TensorFlow have and those of the same name here do not."""

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
    "Optimizer.get_config": "the arguments that it was made with",
    "Optimizer.lr": "optimizer.learning_rate",
    "Optimizer.minimize": (
        "loss, gradients = sg.value_and_grad(compute_loss, variables)() and "
        "optimizer.apply_gradients(zip(gradients, variables))"
    ),
}
"""For each class and method what takes its place; ``sg`` stands for ``stratagem``."""
