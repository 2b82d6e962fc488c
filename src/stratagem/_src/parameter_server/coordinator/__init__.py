"""The coordinator of a parameter-server cluster: schedules functions on workers and survives their loss."""
