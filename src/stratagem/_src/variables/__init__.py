"""Variables: one placement per file, updates, state frames, transactions and locks."""
