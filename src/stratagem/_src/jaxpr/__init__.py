"""Analyses and rewrites of jaxprs (compiler passes)."""
