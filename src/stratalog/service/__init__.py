"""Background work on open logs: the schedule, retention, cleaner threads, health."""
