"""Names of ``tf`` itself that make, shape, join, choose from or convert arrays, and are not here."""

__all__ = ["ARRAYS"]

ARRAYS: dict[str, str] = {
    "RaggedTensor": "a list of arrays, or a padded array and its jax.numpy mask",
    "SparseTensor": "jax.experimental.sparse.BCOO, or sg.IndexedSlices for rows",
    "sparse.SparseTensor": "jax.experimental.sparse.BCOO",
    "sparse.from_dense": "jax.experimental.sparse.BCOO.fromdense(x)",
    "sparse.sparse_dense_matmul": "a @ b of a jax.experimental.sparse.BCOO",
    "to_float": "x.astype(sg.float32)",
}
