"""Apache Kafka's log storage in Python: reads and writes Kafka's own files."""
