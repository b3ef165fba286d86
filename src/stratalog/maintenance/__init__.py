"""Recovery, retention, compaction, verification and reindexing of logs: plan first, then act."""
