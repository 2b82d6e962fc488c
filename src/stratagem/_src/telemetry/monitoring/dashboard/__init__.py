"""A running job as a web page."""
