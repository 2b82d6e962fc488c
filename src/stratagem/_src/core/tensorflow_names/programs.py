"""Replacements for names of gradients, control flow, saving, files, devices, and the rest."""

__all__ = ["PROGRAMS"]

_NO_GRAPH = "nothing: there are no graphs and sessions; sg.function compiles what it calls"

_TOP = {
    "CriticalSection": "threading.Lock",
    "DeviceSpec": "a string such as 'GPU:0', or jax.Device",
    "Graph": _NO_GRAPH,
    "Operation": _NO_GRAPH,
    "RegisterGradient": "jax.custom_vjp",
    "Session": _NO_GRAPH,
    "SparseTensorSpec": "sg.TensorSpec of the values and of the indices",
    "TypeSpec": "sg.TensorSpec",
    "global_variables_initializer": "nothing: a variable has its value when it is made",
    "gradients": "sg.GradientTape, or sg.value_and_grad",
    "hessians": "jax.hessian(f)(x)",
    "nondifferentiable_batch_function": "jax.vmap",
    "placeholder": "an argument of a function: sg.function",
    "trainable_variables": "a list of yours: [v for v in variables if v.trainable]",
    "tuple": "a Python tuple",
    "types.experimental": "jax.typing.ArrayLike, jax.Array and the classes of sg",
    "variable_creator_scope": (
        "a function of yours that makes each sg.Variable; strategy.scope() decides where they are"
    ),
}
_AUTOGRAPH = (
    "jax.lax.cond, jax.lax.while_loop and jax.numpy.where: Python's if and while are not rewritten"
)
_MODULES = {
    "app": "absl.app, or plain Python: if __name__ == '__main__'",
    "autograph.experimental.Feature": "nothing: functions are traced, and their source is not rewritten",
    "autograph.to_code": _AUTOGRAPH,
    "autograph.to_graph": _AUTOGRAPH,
    "audio": "scipy.io.wavfile, or soundfile, in Dataset.map",
    "autodiff": "jax.jvp and jax.vjp",
    "contrib": "nothing: TensorFlow itself has dropped it",
    "dtensor": "jax.sharding.Mesh and jax.sharding.NamedSharding",
    "estimator": "a loop of your own over sg.function, or Keras",
    "experimental.numpy": "jax.numpy",
    "feature_column": "jax.nn.one_hot and table[ids], in Dataset.map or in the model",
    "flags": "argparse, or absl.flags",
    "layers": "sg.keras.layers or flax.nnx",
    "lite": "jax.export.export(jax.jit(f))(*args), and tools that read StableHLO",
    "logging": "logging.getLogger('stratagem')",
    "ragged": "sg.RaggedTensor.from_row_lengths(values, lengths)",
    "quantization": "qwix or aqt, libraries for JAX, or model.quantize of sg.keras",
    "raw_ops": "jax.numpy and jax.lax",
    "xla.experimental": "sg.function, which always compiles with XLA",
}
_DEBUGGING = {
    "debugging.enable_check_numerics": "jax.debug_nans(True)",
    "debugging.experimental": "jax.debug",
    "debugging.set_log_device_placement": "x.sharding and x.devices() of a jax.Array",
}
_CONFIG = {
    "config.experimental.get_memory_info": "jax.devices()[i].memory_stats()",
    "config.experimental.get_memory_usage": "jax.devices()[i].memory_stats()['bytes_in_use']",
    "config.experimental.reset_memory_stats": "jax.devices()[i].memory_stats(), which only counts on",
    "config.experimental.enable_tensor_float_32_execution": "jax.default_matmul_precision('tensorfloat32')",
    "config.experimental_connect_to_host": "sg.config.experimental_connect_to_cluster(resolver)",
    "config.experimental_functions_run_eagerly": "sg.config.functions_run_eagerly()",
    "config.experimental_run_functions_eagerly": "sg.config.run_functions_eagerly(True)",
}
_DATA = {
    "data.FixedLengthRecordDataset": "sg.data.NumpyDataset, or sg.data.Dataset.from_generator",
    "data.Iterator": "sg.data.DatasetIterator",
    "data.NumpyIterator": "sg.data.Dataset.as_numpy_iterator",
    "data.experimental.Counter": "sg.data.Dataset.counter(start, step)",
    "data.experimental.RandomDataset": "sg.data.Dataset.random(seed)",
    "data.experimental.TFRecordWriter": "sg.io.TFRecordWriter",
    "data.experimental.dense_to_ragged_batch": "dataset.ragged_batch(n): sg.data.Dataset.ragged_batch",
    "data.experimental.enumerate_dataset": "dataset.enumerate(start): sg.data.Dataset.enumerate",
    "data.experimental.make_csv_dataset": "sg.data.CsvDataset",
    "data.experimental.map_and_batch": "dataset.map(fn).batch(n): sg.data.Dataset.map",
    "data.experimental.parallel_interleave": "sg.data.Dataset.interleave(fn, num_parallel_calls=n)",
    "data.experimental.prefetch_to_device": (
        "strategy.experimental_distribute_dataset(dataset) of any sg.distribute.Strategy"
    ),
    "data.experimental.service": "sg.data on each worker, which reads its own shard",
    "data.experimental.shuffle_and_repeat": "dataset.shuffle(n).repeat(): sg.data.Dataset.shuffle",
    "data.experimental.unbatch": "dataset.unbatch(): sg.data.Dataset.unbatch",
    "data.make_initializable_iterator": "iter(dataset) of sg.data.Dataset",
    "data.make_one_shot_iterator": "iter(dataset) of sg.data.Dataset",
}
_DATASET_METHODS = (
    "bucket_by_sequence_length get_single_element group_by_window "
    "ignore_errors load save scan snapshot take_while unique"
)
_IO = {
    "gfile": "sg.io.gfile",
    "io.RaggedFeature": "sg.io.VarLenFeature",
    "io.SparseFeature": "sg.io.VarLenFeature for the indices and for the values",
    "io.decode_proto": "the message's own class, of the protobuf library, in Dataset.map",
    "io.parse_sequence_example": "sg.io.parse_single_sequence_example, for each record",
}
_COMPAT = {
    "compat.v1.Session": _NO_GRAPH,
    "compat.v1.app": "absl.app, or plain Python: if __name__ == '__main__'",
    "compat.v1.disable_eager_execution": _NO_GRAPH,
    "compat.v1.disable_v2_behavior": _NO_GRAPH,
    "compat.v1.flags": "argparse, or absl.flags",
    "compat.v1.get_variable": "sg.Variable",
    "compat.v1.global_variables_initializer": "nothing: a variable has its value when it is made",
    "compat.v1.placeholder": "an argument of a function: sg.function",
    "compat.v1.set_random_seed": "jax.random.key(seed)",
    "compat.v1.train": "sg.train and sg.keras.optimizers",
    "compat.v1.variable_scope": "objects of yours that hold each sg.Variable: sg.Module",
}
_STRINGS = {
    "lookup.experimental.DenseHashTable": "sg.lookup.experimental.MutableHashTable",
    "strings.to_hash_bucket": "sg.strings.to_hash_bucket_fast, which gives other numbers",
    "strings.to_hash_bucket_strong": "sg.strings.to_hash_bucket_fast, which gives other numbers",
    "strings.unicode_decode_with_offsets": "sg.strings.unicode_decode",
    "strings.unicode_script": "unicodedata.name of each character, in Dataset.map",
    "strings.unicode_split_with_offsets": "sg.strings.unicode_split",
    "sysconfig.get_include": "nothing: there are no C++ headers",
    "sysconfig.get_lib": "nothing: there is no library to link with",
    "test.TestCase": "pytest, and sg.testing.run_cluster for programs of several processes",
    "test.main": "pytest",
}
_TRAIN = {
    "train.AdamOptimizer": "sg.train.Optimizer(optax.adam(rate))",
    "train.Coordinator": "threads of your own, and threading.Event",
    "train.GradientDescentOptimizer": "sg.train.Optimizer(optax.sgd(rate))",
    "train.MomentumOptimizer": "sg.train.Optimizer(optax.sgd(rate, momentum))",
    "train.MonitoredTrainingSession": "a loop, and sg.train.Checkpoint",
    "train.Saver": "sg.train.Checkpoint",
    "train.Server": "sg.distribute.Server",
    "train.create_global_step": "sg.Variable(0, trainable=False)",
    "train.get_or_create_global_step": "sg.Variable(0, trainable=False)",
}
_DISTRIBUTE = {
    "tpu.experimental.embedding": "sg.Variable and table[ids]",
}
_KERAS_METRICS = (
    "CategoricalAccuracy CategoricalCrossentropy BinaryCrossentropy CosineSimilarity F1Score "
    "FalseNegatives FalsePositives Hinge KLDivergence LogCoshError MeanAbsoluteError "
    "MeanAbsolutePercentageError MeanIoU MeanSquaredLogarithmicError Poisson Precision "
    "PrecisionAtRecall R2Score Recall RecallAtPrecision RootMeanSquaredError SensitivityAtSpecificity "
    "SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy SpecificityAtSensitivity "
    "TopKCategoricalAccuracy TrueNegatives TruePositives"
)

PROGRAMS: dict[str, str] = (
    _TOP
    | _MODULES
    | _DEBUGGING
    | _CONFIG
    | _DATA
    | {
        f"data.experimental.{name}": f"the method sg.data.Dataset.{name}"
        for name in _DATASET_METHODS.split()
    }
    | _IO
    | _COMPAT
    | _STRINGS
    | _TRAIN
    | _DISTRIBUTE
    | {
        f"metrics.{name}": (
            f"sg.keras.metrics.{name}; what is a mean over the samples is also "
            "sg.metrics.MeanMetricWrapper(fn)"
        )
        for name in _KERAS_METRICS.split()
    }
)
