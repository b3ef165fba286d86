"""The parts of the demo: events, steps, and how they are told."""
