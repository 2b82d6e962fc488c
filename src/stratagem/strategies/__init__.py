"""Room: strategies."""
