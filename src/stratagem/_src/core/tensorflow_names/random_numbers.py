"""``tf.random``: what it has beside the functions that are here."""

__all__ = ["RANDOM_NUMBERS"]

RANDOM_NUMBERS: dict[str, str] = {
    "random.all_candidate_sampler": "sg.random.shuffle(sg.range(n))",
    "random.experimental.index_shuffle": "sg.random.experimental.stateless_shuffle(sg.range(n), seed)[index]",
    "random.uniform_candidate_sampler": "sg.random.uniform(shape, maxval=n, dtype=sg.int32)",
    "set_random_seed": "sg.random.set_seed",
}
