"""The format of checkpoints before Orbax's, which is still read."""
