"""Other libraries under a strategy, each in a folder of its own."""
