"""Programs that use variables which other processes hold."""
