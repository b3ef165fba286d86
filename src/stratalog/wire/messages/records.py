"""Messages of the protocol: records in and out, and the offsets of a log.

`wire.message_tables` explains the notation below.
"""

TABLE = """
ProduceRequest 3-13 flexible 9+
  transactionalId: string?
  acks: int16
  timeoutMs: int32
  topicData: []{}
    name: string 3-12
    topicId: uuid 13+
    partitionData: []{}
      index: int32
      records: records?

LeaderIdAndEpoch
  leaderId: int32 = -1
  leaderEpoch: int32 = -1

NodeEndpoint
  nodeId: int32
  host: string
  port: int32
  rack: string?

ProduceResponse 3-13 flexible 9+
  responses: []{}
    name: string 3-12
    topicId: uuid 13+
    partitionResponses: []{}
      index: int32
      errorCode: int16
      baseOffset: int64
      logAppendTimeMs: int64 = -1
      logStartOffset: int64 5+ = -1
      recordErrors: []{} 8+
        batchIndex: int32
        batchIndexErrorMessage: string?
      errorMessage: string? 8+
      currentLeader: LeaderIdAndEpoch 10+ tag 0
  throttleTimeMs: int32
  nodeEndpoints: []NodeEndpoint 10+ tag 0

FetchRequest 4-18 flexible 12+
  clusterId: string? 12+ tag 0
  replicaId: int32 4-14 = -1
  replicaState: {} 15+ tag 1
    replicaId: int32 = -1
    replicaEpoch: int64 = -1
  maxWaitMs: int32
  minBytes: int32
  maxBytes: int32 = 2147483647
  isolationLevel: int8
  sessionId: int32 7+
  sessionEpoch: int32 7+ = -1
  topics: []{}
    topic: string 4-12
    topicId: uuid 13+
    partitions: []{}
      partition: int32
      currentLeaderEpoch: int32 9+ = -1
      fetchOffset: int64
      lastFetchedEpoch: int32 12+ = -1
      logStartOffset: int64 5+ = -1
      partitionMaxBytes: int32
      replicaDirectoryId: uuid 17+ tag 0
      highWatermark: int64 18+ tag 1 = 9223372036854775807
  forgottenTopicsData: []{} 7+
    topic: string 7-12
    topicId: uuid 13+
    partitions: []int32
  rackId: string 11+

PartitionData
  partitionIndex: int32
  errorCode: int16
  highWatermark: int64
  lastStableOffset: int64 = -1
  logStartOffset: int64 5+ = -1
  divergingEpoch: {} 12+ tag 0
    epoch: int32 = -1
    endOffset: int64 = -1
  currentLeader: LeaderIdAndEpoch 12+ tag 1
  snapshotId: {} 12+ tag 2
    endOffset: int64 = -1
    epoch: int32 = -1
  abortedTransactions: []{}?
    producerId: int64
    firstOffset: int64
  preferredReadReplica: int32 11+ = -1
  records: records?

FetchResponse 4-18 flexible 12+
  throttleTimeMs: int32
  errorCode: int16 7+
  sessionId: int32 7+
  responses: []{}
    topic: string 4-12
    topicId: uuid 13+
    partitions: []PartitionData
  nodeEndpoints: []NodeEndpoint 16+ tag 0

ListOffsetsRequest 1-11 flexible 6+
  replicaId: int32
  isolationLevel: int8 2+
  topics: []{}
    name: string
    partitions: []{}
      partitionIndex: int32
      currentLeaderEpoch: int32 4+ = -1
      timestamp: int64
  timeoutMs: int32 10+

ListOffsetsResponse 1-11 flexible 6+
  throttleTimeMs: int32 2+
  topics: []{}
    name: string
    partitions: []{}
      partitionIndex: int32
      errorCode: int16
      timestamp: int64 = -1
      offset: int64 = -1
      leaderEpoch: int32 4+ = -1

OffsetForLeaderEpochRequest 2-4 flexible 4+
  replicaId: int32 3+ = -2
  topics: []{}
    topic: string
    partitions: []{}
      partition: int32
      currentLeaderEpoch: int32 = -1
      leaderEpoch: int32

EpochEndOffset
  errorCode: int16
  partition: int32
  leaderEpoch: int32 = -1
  endOffset: int64 = -1

OffsetForLeaderEpochResponse 2-4 flexible 4+
  throttleTimeMs: int32
  topics: []{}
    topic: string
    partitions: []EpochEndOffset
"""
