"""The worker's side: runs closures for a coordinator."""
