"""Room: values."""
