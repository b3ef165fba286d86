"""One segment on disk: read, append, index, roll, recover. `disk` has all calls that modify it."""
