"""What every other room stands on: contexts, errors, structures, threads, process exit."""
