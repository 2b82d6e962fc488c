"""Training: optimizers, losses, metrics, preemption, elastic training and local updates."""
