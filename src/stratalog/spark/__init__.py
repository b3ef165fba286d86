"""Kafka's log directories as a Spark data source, and bulk jobs on Spark."""
