"""One partition: its segments as one log."""
