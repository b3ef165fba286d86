"""Repairing a partition: what is valid, what is lost, and which files are replaced."""
