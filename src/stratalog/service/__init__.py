"""Background work on open logs: retention, cleaner threads, flushes, checkpoints, health."""
