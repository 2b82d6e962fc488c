"""Names of ``tf`` itself that make, shape, join, choose from or convert arrays, and are not here."""

__all__ = ["ARRAYS"]

ARRAYS: dict[str, str] = {
    "RaggedTensor": "a list of arrays, or a padded array and its jax.numpy mask",
    "SparseTensor": "jax.experimental.sparse.BCOO, or sg.IndexedSlices for rows",
    "TensorArray": "the stacked outputs of jax.lax.scan, or x.at[i].set(value)",
    "as_string": "str(x), Python's own",
    "bitwise.bitwise_and": "jax.numpy.bitwise_and",
    "bitwise.bitwise_or": "jax.numpy.bitwise_or",
    "bitwise.bitwise_xor": "jax.numpy.bitwise_xor",
    "bitwise.invert": "jax.numpy.bitwise_invert",
    "bitwise.left_shift": "jax.numpy.left_shift",
    "bitwise.right_shift": "jax.numpy.right_shift",
    "sparse.SparseTensor": "jax.experimental.sparse.BCOO",
    "sparse.from_dense": "jax.experimental.sparse.BCOO.fromdense(x)",
    "sparse.sparse_dense_matmul": "a @ b of a jax.experimental.sparse.BCOO",
    "sparse.to_dense": "x.todense() of a jax.experimental.sparse.BCOO",
    "to_float": "x.astype(sg.float32)",
}
