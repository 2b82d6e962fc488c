"""Trains a small transformer that learns to write, word by word, from stories shipped here.

Run it with ``python examples/language_model.py`` on two virtual devices, or in two processes with
``stratagem run --workers 2 examples/language_model.py``: the losses are the same. With
``stratagem run --islands 2 examples/language_model.py --sync-every 20`` two islands train apart, and
average every 20 steps (local SGD). After the training it writes a few lines itself.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

CONTEXT, DIMS, HEADS, LAYERS = 32, 64, 4, 2


def create_parameters(num_words: int) -> dict[str, Any]:
    """Returns the transformer's variables."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> sg.Variable:
        return sg.Variable(rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32))

    def block() -> dict[str, sg.Variable]:
        return {
            "before_attention": sg.Variable(np.ones(DIMS, np.float32)),
            "queries_keys_values": matrix(DIMS, 3 * DIMS),
            "attended": matrix(DIMS, DIMS),
            "before_hidden": sg.Variable(np.ones(DIMS, np.float32)),
            "hidden": matrix(DIMS, 4 * DIMS),
            "out": matrix(4 * DIMS, DIMS),
        }

    return {
        "words": matrix(num_words, DIMS),
        "places": matrix(CONTEXT, DIMS),
        "blocks": [block() for _ in range(LAYERS)],
        "before_scores": sg.Variable(np.ones(DIMS, np.float32)),
        "scores": matrix(DIMS, num_words),
    }


def normalized(x: Any, scale: Any) -> Any:
    """Returns ``x`` with rows of one length, scaled."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def scores_of(parameters: Any, words: Any) -> Any:
    """Returns scores for the word after each place of each text."""
    batch, length = words.shape
    x = parameters["words"].value()[words] + parameters["places"].value()[:length]
    for block in parameters["blocks"]:
        joint = normalized(x, block["before_attention"]) @ block["queries_keys_values"]
        heads = joint.reshape(batch, length, 3, HEADS, DIMS // HEADS)
        queries, keys, values = (heads[:, :, i] for i in range(3))
        attended = jax.nn.dot_product_attention(queries, keys, values, is_causal=True)
        x = x + attended.reshape(batch, length, DIMS) @ block["attended"]
        hidden = normalized(x, block["before_hidden"]) @ block["hidden"]
        x = x + jax.nn.gelu(hidden) @ block["out"]
    return normalized(x, parameters["before_scores"]) @ parameters["scores"]


def windows(
    words: np.ndarray, batch_size: int, island: int = 0, num_islands: int = 1
) -> sg.data.Dataset:
    """Returns batches of pieces of the text, and of the same pieces one word on.

    Islands shuffle alike and take turns, so that in each step all together have the pieces that one
    would have.
    """
    starts = np.arange(len(words) - CONTEXT)
    dataset = sg.data.Dataset.from_tensor_slices(starts)
    dataset = dataset.shuffle(len(starts), seed=1).repeat().shard(num_islands, island)
    return dataset.batch(batch_size).map(
        lambda starts: (
            words[starts[:, None] + np.arange(CONTEXT)],
            words[starts[:, None] + np.arange(1, CONTEXT + 1)],
        )
    )


def train(
    strategy: sg.distribute.Strategy,
    words: np.ndarray,
    steps: int,
    batch_size: int,
    sync_every: int | None = None,
    learning_rate: float = 4e-3,
    outer_momentum: float | None = None,
) -> tuple[dict[str, Any], float]:
    """Returns the trained parameters, and the mean loss of the last steps, in nats for each word."""
    with strategy.scope():
        parameters = create_parameters(int(words.max()) + 1)
        mean_loss = sg.metrics.Mean()
    schedule = optax.warmup_cosine_decay_schedule(0, learning_rate, 20, max(steps, 21))
    optimizer = sg.train.Optimizer(optax.adam, learning_rate=schedule, global_clipnorm=1.0)

    diloco = outer_momentum is not None
    islands = sg.distribute.experimental.LocalUpdates(
        strategy,
        parameters,
        sync_every=sync_every or 1,
        outer_optimizer=optax.sgd(0.7, outer_momentum, nesterov=True) if diloco else None,
    )
    batch_size //= islands.num_islands

    def replica_step(inputs: Any, targets: Any) -> None:
        def loss() -> Any:
            scores = scores_of(parameters, inputs)
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, targets).mean(axis=1)
            return sg.nn.compute_average_loss(losses, global_batch_size=batch_size), losses

        (_, losses), gradients = sg.value_and_grad(loss, parameters, has_aux=True)()
        optimizer.apply(gradients, parameters)
        mean_loss.update_state(losses)

    @sg.function
    def train_step(iterator: Any) -> None:
        strategy.run(replica_step, args=next(iterator))

    dataset = windows(words, batch_size, islands.island, islands.num_islands)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    with islands if sync_every else contextlib.nullcontext():
        for step in range(islands.num_steps + 1, steps + 1):
            train_step(iterator)
            if sync_every:
                islands.step()
            if step % 25 == 0 or step == steps:
                last = float(mean_loss.result())
                print(f"step {step:4d}  loss {last:.3f}", flush=True)
                mean_loss.reset_state()
    return parameters, last


def loss_of(parameters: dict[str, Any], words: np.ndarray) -> float:
    """Returns the mean loss of trained parameters on pieces from the whole text."""

    @sg.function
    def mean_loss(inputs: Any, targets: Any) -> Any:
        scores = scores_of(parameters, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(scores, targets).mean()

    starts = np.arange(0, len(words) - CONTEXT, CONTEXT)[:, None]
    inputs, targets = (words[starts + np.arange(i, CONTEXT + i)] for i in (0, 1))
    return float(mean_loss(inputs, targets))


def words_of(text: str) -> list[str]:
    """Returns words, marks and blank lines of a text."""
    return re.findall(r"\n\n|\w+|[^\w\s]", text)


def write(parameters: dict[str, Any], vocabulary: list[str], length: int) -> str:
    """Returns a text that the model finds likely, after a beginning."""
    text = words_of("\n\nOnce there lived")

    @sg.function
    def next_scores(words: Any, last: Any) -> Any:
        return scores_of(parameters, words[None])[0, last]

    rng = np.random.default_rng(0)
    while len(text) < length:
        seen = [vocabulary.index(word) for word in text[-CONTEXT:]]
        padded = np.array(seen + [0] * (CONTEXT - len(seen)), np.int32)
        scores = np.asarray(next_scores(padded, jnp.asarray(len(seen) - 1)), np.float64) / 0.5
        chances = np.exp(scores - scores.max())
        text.append(vocabulary[rng.choice(len(vocabulary), p=chances / chances.sum())])
    return re.sub(r" ([.,?])", r"\1", " ".join(text)).replace("\n\n ", "\n")


def main() -> None:
    """Trains, and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of virtual CPU devices")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16, help="for all replicas together")
    parser.add_argument("--sync-every", type=int, metavar="H", help="islands average every H steps")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument(
        "--outer-momentum",
        type=float,
        metavar="M",
        help="islands take outer Nesterov steps with this momentum (DiLoCo: 0.9) instead of averaging",
    )
    parser.add_argument("--write", type=int, default=120, help="number of words to write")
    flags = parser.parse_args()

    started = time.perf_counter()
    # A launcher: stratagem run, torchrun, mpirun, Slurm, ... Without one, virtual devices for this example.
    launched = sg.distribute.cluster_resolver.resolve_cluster().resolver is not None
    if launched:
        strategy = sg.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = sg.distribute.MirroredStrategy([f"CPU:{i}" for i in range(flags.devices)])
    text = (Path(__file__).parent / "data" / "stories.txt").read_text()
    vocabulary = sorted(set(words_of(text)))
    words = np.array([vocabulary.index(word) for word in words_of(text)], np.int32)
    print(
        f"{strategy.num_replicas_in_sync} replicas, {len(words)} words, {len(vocabulary)} different"
    )
    parameters, loss = train(
        strategy,
        words,
        flags.steps,
        flags.batch_size,
        flags.sync_every,
        flags.learning_rate,
        flags.outer_momentum,
    )
    print(f"last loss {loss:.3f}, guessing {np.log(len(vocabulary)):.3f}")
    print(f"loss of the trained model {loss_of(parameters, words):.3f}", flush=True)
    print(f"{time.perf_counter() - started:.1f} seconds")
    if flags.write:
        print(write(parameters, vocabulary, flags.write), flush=True)


if __name__ == "__main__":
    main()
