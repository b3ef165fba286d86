"""Broker settings that are accepted and ignored: those of other parts of Kafka than log storage.

They are listed so that the `server.properties` of a real broker is accepted without a warning, and
a misspelled name is found: all documented and internal names of Kafka 4.0, then those of older and
newer versions. Plugins define names of their own: those of Kafka's plugins are listed, and the
prefixes that are open by design are accepted.
"""

from __future__ import annotations

_OPEN_PREFIXES = (
    "config.providers.",
    "confluent.",
    "group.streams.",
    "listener.name.",
    "rlmm.config.",
    "rsm.config.",
    "sasl.",
    "ssl.",
    "zookeeper.",
)

_KAFKA_4_0 = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
advertised.listeners alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
alter.log.dirs.replication.quota.window.size.seconds authorizer.class.name
auto.leader.rebalance.enable background.threads broker.heartbeat.interval.ms broker.rack
broker.session.timeout.ms client.quota.callback.class config.providers
connection.failed.authentication.delay.ms connections.max.idle.ms connections.max.reauth.ms
controlled.shutdown.enable controller.listener.names
controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
controller.quorum.append.linger.ms controller.quorum.bootstrap.servers
controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
controller.quorum.retry.backoff.ms controller.quorum.voters controller.quota.window.num
controller.quota.window.size.seconds controller.socket.timeout.ms create.topic.policy.class.name
delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
delegation.token.max.lifetime.ms delegation.token.secret.key
delete.records.purgatory.purge.interval.requests early.start.listeners fetch.max.bytes
fetch.purgatory.purge.interval.requests group.consumer.assignors
group.consumer.max.heartbeat.interval.ms
group.consumer.max.session.timeout.ms group.consumer.migration.policy
group.consumer.min.heartbeat.interval.ms group.consumer.min.session.timeout.ms
group.coordinator.append.linger.ms
group.coordinator.new.enable group.coordinator.rebalance.protocols group.coordinator.threads
group.share.delivery.count.limit group.share.enable
group.share.heartbeat.interval.ms group.share.max.groups group.share.max.heartbeat.interval.ms
group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.size
group.share.min.heartbeat.interval.ms group.share.min.record.lock.duration.ms
group.share.min.session.timeout.ms group.share.partition.max.record.locks
group.share.persister.class.name group.share.record.lock.duration.ms
group.share.session.timeout.ms initial.broker.registration.timeout.ms inter.broker.listener.name
kafka.metrics.polling.interval.secs kafka.metrics.reporters
leader.imbalance.check.interval.seconds leader.imbalance.per.broker.percentage
listener.security.protocol.map listeners max.connection.creation.rate max.connections
max.connections.per.ip max.connections.per.ip.overrides
max.incremental.fetch.session.cache.slots max.request.partition.size.limit metadata.log.dir
metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
metadata.log.segment.bytes metadata.log.segment.min.bytes metadata.log.segment.ms
metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
num.io.threads num.network.threads num.replica.alter.log.dirs.threads num.replica.fetchers
principal.builder.class process.roles producer.purgatory.purge.interval.requests
queued.max.request.bytes queued.max.requests quota.window.num quota.window.size.seconds
remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.task.interval.ms
remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks
remote.log.reader.threads remote.log.storage.manager.class.name
remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
remote.log.storage.system.enable replica.fetch.backoff.ms replica.fetch.max.bytes
replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
replica.lag.time.max.ms replica.selector.class replica.socket.receive.buffer.bytes
replica.socket.timeout.ms replication.quota.window.num replication.quota.window.size.seconds
request.timeout.ms security.inter.broker.protocol security.providers server.max.startup.time.ms
share.coordinator.append.linger.ms share.coordinator.load.buffer.size
share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
share.coordinator.threads share.coordinator.write.timeout.ms
share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms socket.listen.backlog.size socket.receive.buffer.bytes
socket.request.max.bytes socket.send.buffer.bytes telemetry.max.bytes
unstable.api.versions.enable unstable.feature.versions.enable
"""

_AUTHORIZER = "allow.everyone.if.no.acl.found super.users"

_OLDER = """
advertised.host.name advertised.port broker.id.generation.enable control.plane.listener.name
controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms delegation.token.master.key
eligible.leader.replicas.enable host.name inter.broker.protocol.version
log.message.downconversion.enable log.message.format.version
log.message.timestamp.difference.max.ms offsets.commit.required.acks
password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret port
quota.consumer.default quota.producer.default replica.lag.max.messages reserved.broker.max.id
unstable.metadata.versions.enable
"""

_NEWER = """
controller.quorum.auto.join.enable cordoned.log.dirs group.share.assignors
group.share.max.share.sessions share.coordinator.cold.partition.snapshot.interval.ms
transaction.two.phase.commit.enable
"""

IGNORED_SETTINGS = frozenset(f"{_KAFKA_4_0} {_AUTHORIZER} {_OLDER} {_NEWER}".split())
"""The names without a common prefix."""


def is_ignored(name: str) -> bool:
    """Whether `name` is a setting of another part of Kafka than its log storage."""
    return name in IGNORED_SETTINGS or name.startswith(_OPEN_PREFIXES)
