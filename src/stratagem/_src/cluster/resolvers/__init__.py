"""One resolver per file; import them from ``stratagem._src.cluster``."""
