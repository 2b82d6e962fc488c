"""``tf.random``: JAX's random numbers come from keys, which a program passes on itself."""

__all__ = ["RANDOM_NUMBERS"]

_KEY = "with key = jax.random.key(seed)"
_CATEGORICAL = "jax.random.categorical(key, logits, shape=(num_samples, len(logits))).T"
_PER_REPLICA = "jax.random.fold_in(key, replica_id_in_sync_group) gives each replica its own"

RANDOM_NUMBERS: dict[str, str] = {
    "random.Generator": f"jax.random.key(seed), and jax.random.split for each use; {_PER_REPLICA}",
    "random.categorical": f"{_CATEGORICAL}, {_KEY}",
    "random.experimental": "jax.random",
    "random.fold_in": "jax.random.fold_in(key, data)",
    "random.gamma": f"jax.random.gamma(key, alpha, shape), {_KEY}",
    "random.get_global_generator": "jax.random.key(seed), handed to what needs it",
    "random.normal": f"jax.random.normal(key, shape), {_KEY}",
    "random.poisson": f"jax.random.poisson(key, lam, shape), {_KEY}",
    "random.set_seed": f"jax.random.key(seed); {_PER_REPLICA}",
    "random.shuffle": f"jax.random.permutation(key, x), {_KEY}",
    "random.split": "jax.random.split(key, num)",
    "random.stateless_binomial": "jax.random.binomial(key, n, p, shape)",
    "random.stateless_categorical": _CATEGORICAL,
    "random.stateless_gamma": "jax.random.gamma(key, alpha, shape)",
    "random.stateless_normal": "jax.random.normal(key, shape)",
    "random.stateless_poisson": "jax.random.poisson(key, lam, shape)",
    "random.stateless_truncated_normal": "jax.random.truncated_normal(key, -2, 2, shape)",
    "random.stateless_uniform": "jax.random.uniform(key, shape)",
    "random.truncated_normal": f"jax.random.truncated_normal(key, -2, 2, shape), {_KEY}",
    "random.uniform": (
        f"jax.random.uniform(key, shape), or jax.random.randint for whole numbers, {_KEY}"
    ),
    "random_normal_initializer": "jax.nn.initializers.normal(0.05)(key, shape)",
    "random_uniform_initializer": "jax.random.uniform(key, shape, minval=-0.05, maxval=0.05)",
    "set_random_seed": f"jax.random.key(seed); {_PER_REPLICA}",
}
