"""``Checkpoint`` and ``CheckpointManager``: what is saved of a program's objects, when, and by whom."""
