"""A Ray program whose workers train in step, each on its part of a Ray dataset."""

import numpy as np
import ray.data

import stratagem as sg


def train() -> float:
    """Sums what all workers have read, as a step would sum gradients."""
    strategy = sg.distribute.MultiWorkerMirroredStrategy()
    total = np.float32(0.0)
    for batch in sg.integrations.ray.get_dataset_shard("train").iter_batches(batch_size=8):
        total += batch["id"].sum()

    @sg.function
    def add(x: object) -> object:
        return strategy.run(
            lambda x: sg.distribute.get_replica_context().all_reduce("SUM", x), args=(x,)
        )

    values = strategy.experimental_distribute_values_from_function(lambda _: total)
    return float(strategy.experimental_local_results(add(values))[0])


if __name__ == "__main__":
    dataset = ray.data.range(32)
    print(sg.integrations.ray.run(train, workers=2, datasets={"train": dataset}))
