"""Bulk work without PySpark: planning of reads, and jobs over many partitions on any workers."""
