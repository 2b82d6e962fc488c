"""All-reduces on CPU that do not go through XLA: shared memory within a host, connections between hosts."""
