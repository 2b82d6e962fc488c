"""How checkpoints are stored: Orbax's format, written and read in parts, and what came before it."""
