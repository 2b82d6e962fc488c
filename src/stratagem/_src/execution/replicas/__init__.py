"""How one function runs in every replica: alone, as threads, or as one SPMD program."""
