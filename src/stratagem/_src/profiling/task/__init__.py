"""What JAX's profiler records of one process, and the records of all processes on one time line."""
