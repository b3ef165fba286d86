"""What a Kafka client and its transaction coordinator do: partitioning, batching, transactions."""
