"""Kafka's producer and transaction coordinator: partitioning, batching, transactions."""
