"""The parts of the demo: events, steps, and output."""
