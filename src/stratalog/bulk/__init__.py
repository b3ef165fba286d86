"""Work on many partitions at once, without PySpark: planning of reads, jobs that run on threads."""
