"""Kafka's wire protocol without I/O: requests and responses as dicts, frames as bytes."""
