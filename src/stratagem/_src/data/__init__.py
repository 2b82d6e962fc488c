"""Datasets: a plan of sources and transformations, and how it runs."""
