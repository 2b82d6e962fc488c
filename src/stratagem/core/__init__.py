"""What every other room stands on: contexts, devices, shapes, errors."""
