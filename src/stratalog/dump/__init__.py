"""What Kafka's dump tool prints, line for line."""
