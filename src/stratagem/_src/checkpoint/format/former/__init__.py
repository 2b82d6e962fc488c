"""The predecessor of the Orbax format, which is still read."""
