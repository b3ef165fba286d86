"""One file, one segment: reading Kafka's files without ever changing them."""
