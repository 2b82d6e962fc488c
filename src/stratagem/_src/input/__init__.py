"""From datasets to per-replica batches on devices."""
