"""Dividing a program that was written for a whole batch over the replicas."""
