"""The strategies, and the contexts of their replicas."""
