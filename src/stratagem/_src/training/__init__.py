"""What a training program needs besides a strategy: optimizers and checkpoints."""
