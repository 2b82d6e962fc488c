"""Room: collectives."""
