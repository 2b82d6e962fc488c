"""A running job, seen from outside: what its tasks measure, collected, kept for a while and shown."""
