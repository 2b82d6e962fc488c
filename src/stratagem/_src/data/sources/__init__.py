"""The sources of datasets."""
