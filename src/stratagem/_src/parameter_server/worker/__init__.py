"""A worker's process: what it does for a coordinator."""
