"""A Kafka broker in front of log directories: one node, one thread, Kafka's protocol."""
