"""Sources of the user's own, behind the ports that Kafka has; and one that counts."""
