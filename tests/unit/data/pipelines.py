"""Random pipelines: the same steps on a dataset and, naively, on a Python list."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from stratagem.data import Dataset, TensorSpec

INT = TensorSpec((), "int64")


def plain(element):
    """Returns an element as nested Python lists and tuples."""
    if isinstance(element, tuple):
        return tuple(plain(part) for part in element)
    if isinstance(element, dict):
        return {key: plain(part) for key, part in element.items()}
    return element if isinstance(element, bytes) else np.asarray(element).tolist()


def contents(dataset):
    return [plain(element) for element in dataset]


def streamed(numbers):
    """The numbers through a generator, which has no random access."""
    return Dataset.from_generator(lambda: iter(list(numbers)), output_signature=INT)


def chunks(items, sizes, drop_remainder):
    result, turns = [], itertools.cycle(sizes)
    while items:
        size = next(turns)
        if len(items) >= size or not drop_remainder:
            result.append(items[:size])
        items = items[size:]
    return result


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


def shard(items, num_shards, index):
    return items[index::num_shards]


# Each step: (what it does to a dataset, what it does to a list).
def flat_steps():
    return st.one_of(
        st.integers(-1, 30).map(lambda n: (lambda d: d.take(n), lambda x: x if n < 0 else x[:n])),
        st.integers(-1, 30).map(lambda n: (lambda d: d.skip(n), lambda x: [] if n < 0 else x[n:])),
        st.integers(0, 3).map(lambda n: (lambda d: d.repeat(n), lambda x: x * n)),
        st.tuples(st.integers(1, 4), st.integers(0, 3)).map(
            lambda p: (
                lambda d: d.shard(p[0], p[1] % p[0]),
                lambda x: shard(x, p[0], p[1] % p[0]),
            )
        ),
        st.tuples(st.integers(1, 7), st.booleans()).map(
            lambda p: (
                lambda d: d.batch(p[0], p[1]).unbatch(),
                lambda x: joined(chunks(x, [p[0]], p[1])),
            )
        ),
        st.integers(1, 5).map(
            lambda n: (
                lambda d: d.batch(n).shard(2, 1).unbatch(),
                lambda x: joined(shard(chunks(x, [n], False), 2, 1)),
            )
        ),
        st.just((lambda d: d.map(lambda x: x + 3), lambda x: [v + 3 for v in x])),
        st.just((lambda d: d.filter(lambda x: x % 3 != 0), lambda x: [v for v in x if v % 3 != 0])),
        st.just(
            (
                lambda d: d.enumerate().map(lambda i, x: i * 1000 + x),
                lambda x: [i * 1000 + v for i, v in enumerate(x)],
            )
        ),
        st.just((lambda d: d.concatenate(Dataset.range(4)), lambda x: [*x, 0, 1, 2, 3])),
        st.just(
            (
                lambda d: Dataset.zip((d, Dataset.range(9))).map(lambda a, b: a * 100 + b),
                lambda x: [a * 100 + b for a, b in zip(x, range(9), strict=False)],
            )
        ),
        st.just((lambda d: d.cache(), lambda x: x)),
        st.just((lambda d: d.prefetch(3), lambda x: x)),
        st.just(
            (
                lambda d: d.map(lambda x: np.array([int(x), -int(x)])).unbatch(),
                lambda x: [y for v in x for y in (v, -v)],
            )
        ),
        st.just(
            (
                lambda d: d.flat_map(lambda x: Dataset.from_tensors(x).repeat(int(x) % 3)),
                lambda x: [v for v in x for _ in range(v % 3)],
            )
        ),
    )


def batch_steps():
    return st.one_of(
        st.just((lambda d: d, lambda x: x)),
        st.tuples(st.integers(1, 6), st.booleans()).map(
            lambda p: (lambda d: d.batch(p[0], p[1]), lambda x: chunks(x, [p[0]], p[1]))
        ),
        st.tuples(
            st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans()
        ).map(
            lambda p: (
                lambda d: d.batch(p[0]).rebatch(p[1], p[2]),
                lambda x: chunks(x, p[1], p[2]),
            )
        ),
        st.integers(1, 4).map(
            lambda n: (
                lambda d: d.batch(n).repeat(2).skip(1).take(5),
                lambda x: (chunks(x, [n], False) * 2)[1:][:5],
            )
        ),
    )


def sources():
    return st.tuples(st.integers(0, 25), st.booleans()).map(
        lambda p: (
            Dataset.from_tensor_slices(np.arange(p[0])) if p[1] else streamed(range(p[0])),
            list(range(p[0])),
        )
    )


def pipelines(extra=()):
    """Pairs of a dataset and the list of its elements."""
    steps = st.lists(st.one_of(flat_steps(), *extra), max_size=5)

    def build(parts):
        (dataset, items), middle, last = parts
        for on_dataset, on_list in [*middle, last]:
            dataset, items = on_dataset(dataset), on_list(items)
            if len(items) > 400:
                dataset, items = dataset.take(400), items[:400]
        return dataset, items

    return st.tuples(sources(), steps, batch_steps()).map(build)


def shuffles():
    """Shuffle steps; what they do to a list is not known."""
    return st.tuples(st.integers(1, 40), st.integers(0, 5), st.booleans()).map(
        lambda p: (lambda d: d.shuffle(p[0], p[1], p[2]), lambda x: x)
    )
