"""Random pipelines: the same steps on a dataset and, naively, on a Python list."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from stratagem.data import Dataset, RaggedTensor, TensorSpec

INT = TensorSpec((), "int64")


def plain(element):
    """Returns an element as nested Python lists and tuples."""
    if isinstance(element, tuple):
        return tuple(plain(part) for part in element)
    if isinstance(element, Dataset):
        return contents(element)
    if isinstance(element, RaggedTensor):
        return element.to_list()
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


def windows(items, size, shift, stride, drop_remainder):
    reach = (size - 1) * stride + 1
    starts = range(0, len(items), shift)
    return [
        items[start : start + reach : stride]
        for start in starts
        if not drop_remainder or start + reach <= len(items)
    ]


def groups(items, key, size):
    """The groups in the order in which they are complete, the others last, by their keys."""
    complete, waiting = [], {}
    for item in items:
        waiting.setdefault(key(item), []).append(item)
        if len(waiting[key(item)]) == size:
            complete.append(waiting.pop(key(item)))
    return complete + [waiting[k] for k in sorted(waiting)]


def sums(items):
    return list(itertools.accumulate(items))


def not_five(number):
    if int(number) % 5 == 0:
        raise ValueError("five")
    return number


# Each step: (what it does to a dataset, what it does to a list).
def grouping_steps():
    return st.one_of(
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.booleans()).map(
            lambda p: (
                lambda d: d.window(*p).flat_map(lambda window: window),
                lambda x: joined(windows(x, *p)),
            )
        ),
        st.tuples(st.integers(1, 4), st.integers(1, 5)).map(
            lambda p: (
                lambda d: d.group_by_window(lambda x: x % p[0], lambda key, group: group, p[1]),
                lambda x: joined(groups(x, lambda v: v % p[0], p[1])),
            )
        ),
        st.just(
            (
                lambda d: d.take_while(lambda x: x % 11 != 10),
                lambda x: list(itertools.takewhile(lambda v: v % 11 != 10, x)),
            )
        ),
        st.just((lambda d: d.scan(np.int64(0), lambda s, x: (s + x, s + x)), sums)),
        st.just((lambda d: d.unique(), lambda x: list(dict.fromkeys(x)))),
        st.just((lambda d: d.map(not_five).ignore_errors(), lambda x: [v for v in x if v % 5])),
        st.just(
            (
                lambda d: d.map(not_five).prefetch(2).ignore_errors(),
                lambda x: [v for v in x if v % 5],
            )
        ),
        st.just(
            (
                lambda d: Dataset.choose_from_datasets(
                    [d, Dataset.range(3)], Dataset.range(2).repeat(), stop_on_empty_dataset=False
                ),
                lambda x: alternated(x, [0, 1, 2]),
            )
        ),
    )


def alternated(first, second):
    both = itertools.zip_longest(first, second)
    return [item for pair in both for item in pair if item is not None]


def flat_steps():
    return st.one_of(
        grouping_steps(),
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


def random_steps():
    """Steps by chance; what they do to a list is not known."""
    return st.one_of(shuffles(), samplings())


def samplings():
    return st.tuples(st.integers(0, 5), st.booleans(), st.booleans()).map(
        lambda p: (
            lambda d: Dataset.sample_from_datasets([d, Dataset.range(50, 53)], [0.7, 0.3], *p),
            lambda x: [*x, 50, 51, 52],
        )
    )


def shuffles():
    """Shuffle steps; what they do to a list is not known."""
    return st.tuples(st.integers(1, 40), st.integers(0, 5), st.booleans()).map(
        lambda p: (lambda d: d.shuffle(p[0], p[1], p[2]), lambda x: x)
    )
