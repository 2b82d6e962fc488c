"""One resolver per file; import them from ``stratagem.cluster``."""
