"""Elastic training: resumable loops, variable snapshots, and agreement after a change of workers."""
