"""What Kafka 4.0 asks of a topic's settings together, each of them being right alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from stratalog.config.topic import LogConfig

LOCAL_AS_TOTAL: Final = -2
"""As `local.retention.*`: what `retention.*` is."""


def check_rules(config: LogConfig) -> None:
    """Raise ConfigError for the first setting that contradicts another."""
    _check_lags(config)
    if config.remote_storage_enable:
        _check_remote(config)


def _check_lags(config: LogConfig) -> None:
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        reason = (
            f"{config.min_compaction_lag_ms} is more than max.compaction.lag.ms, "
            f"which is {config.max_compaction_lag_ms}"
        )
        raise ConfigError("min.compaction.lag.ms", reason, value=config.min_compaction_lag_ms)


def _check_remote(config: LogConfig) -> None:
    """Kafka's rules between tiered storage and the rest."""
    if config.is_compacted:
        reason = "true is not for a topic whose cleanup.policy has compact"
        raise ConfigError("remote.storage.enable", reason, value=True)
    _check_local("local.retention.ms", config.local_retention_ms, config.retention_ms)
    _check_local("local.retention.bytes", config.local_retention_bytes, config.retention_bytes)


def _check_local(name: str, local: int, total: int) -> None:
    if total < 0 or local == LOCAL_AS_TOTAL:
        return
    if local < 0 or local > total:
        shown = f"{local} (no limit)" if local < 0 else str(local)
        reason = f"{shown} is more than {name.removeprefix('local.')}, which is {total}"
        raise ConfigError(name, reason, value=local)
