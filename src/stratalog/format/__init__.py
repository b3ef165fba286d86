"""Bytes to values and back, for every file Kafka keeps. No I/O, no clock, no logging."""
