"""Server side of parameter servers: the stored variables, and the updates and checkpoints of them."""
