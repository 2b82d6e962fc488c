"""The coordinator of a parameter-server cluster: schedules functions on workers, tolerates their loss."""
