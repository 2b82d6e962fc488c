"""The plan of datasets."""
