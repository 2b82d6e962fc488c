"""Variables: one placement in each file, and what can be done to them."""
