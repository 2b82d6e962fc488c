"""The transforms of datasets."""
