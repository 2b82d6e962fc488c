"""Analyses and rewrites of jaxprs."""
