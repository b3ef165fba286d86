"""Compaction: which part of a log to clean now, what stays of each batch, and the rewrite."""
