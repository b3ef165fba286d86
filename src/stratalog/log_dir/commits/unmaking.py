"""Taking back topics that a job made and then failed to fill.

Under the lock, and only what is as the job made it: the same topic id, no record in any log,
nothing staged by anybody. Who has found the topic meanwhile and stages later is refused at the
commit, as for any deleted topic; no row is lost without a word.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stratalog.format.staged_names import parse_staged_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.log_dir.commits.finding import Target
    from stratalog.log_dir.commits.staged import StagedTopic
    from stratalog.log_dir.manager import LogDir


def unmake_topics(target: Target, made: Sequence[StagedTopic]) -> tuple[str, ...]:
    """Delete those that are still empty and unused. The names of the others."""
    if not made:
        return ()
    kept = []
    with _without_delay(target).open() as logs:
        for topic in made:
            if _is_unused(logs, topic):
                logs.delete_topic(topic.name)
            else:
                kept.append(topic.name)
    return tuple(kept)


def _without_delay(target: Target) -> Target:
    """Files of an empty topic need not wait; unless those of other topics do."""
    for root in target.paths:
        for path in root.iterdir():
            if path.is_dir() and path.name.endswith("-delete"):
                return target
    config = target.config
    log_config = replace(config.log_config, file_delete_delay_ms=0)
    return replace(target, config=replace(config, log_config=log_config))


def _is_unused(logs: LogDir, topic: StagedTopic) -> bool:
    info = logs.topics.get(topic.name)
    if info is None or info.topic_id != topic.topic_id:
        return False
    if any(log.log_end_offset for log in logs.partitions_of(topic.name)):
        return False
    names = (path.name for _, directory in topic.dirs for path in directory.iterdir())
    return not any(parse_staged_name(name) for name in names)
