"""Libraries that work with strategies when they are there; none of them is needed."""
