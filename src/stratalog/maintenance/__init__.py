"""What happens to logs that no client asked for, and what can be told about them."""
