"""Settings of topics and brokers by Kafka's names: typed, checked, frozen."""

from __future__ import annotations

from stratalog.config.broker import BrokerConfig
from stratalog.config.topic import CleanupPolicy, LogConfig, TopicCompression

__all__ = ["BrokerConfig", "CleanupPolicy", "LogConfig", "TopicCompression"]
