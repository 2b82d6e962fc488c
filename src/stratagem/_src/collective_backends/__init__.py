"""CPU backends for collectives that bypass XLA: shared memory within a host, TCP between hosts."""
