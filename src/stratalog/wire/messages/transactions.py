"""Messages of the protocol: producer ids and transactions.

`wire.message_tables` explains the notation below.
"""

TABLE = """
InitProducerIdRequest 0-6 flexible 2+
  transactionalId: string?
  transactionTimeoutMs: int32
  producerId: int64 3+ = -1
  producerEpoch: int16 3+ = -1
  enable2Pc: bool 6+
  keepPreparedTxn: bool 6+

InitProducerIdResponse 0-6 flexible 2+
  throttleTimeMs: int32
  errorCode: int16
  producerId: int64 = -1
  producerEpoch: int16
  ongoingTxnProducerId: int64 6+ = -1
  ongoingTxnProducerEpoch: int16 6+ = -1

AddPartitionsToTxnRequest 0-5 flexible 3+
  v3AndBelowTransactionalId: string 0-3
  v3AndBelowProducerId: int64 0-3
  v3AndBelowProducerEpoch: int16 0-3
  v3AndBelowTopics: []{} 0-3
    name: string
    partitions: []int32
  transactions: []{} 4+
    transactionalId: string
    producerId: int64
    producerEpoch: int16
    verifyOnly: bool
    topics: []{}
      name: string
      partitions: []int32

AddPartitionsToTxnTopicResult
  name: string
  resultsByPartition: []{}
    partitionIndex: int32
    partitionErrorCode: int16

AddPartitionsToTxnResponse 0-5 flexible 3+
  throttleTimeMs: int32
  resultsByTopicV3AndBelow: []AddPartitionsToTxnTopicResult 0-3
  errorCode: int16 4+
  resultsByTransaction: []{} 4+
    transactionalId: string
    topicResults: []AddPartitionsToTxnTopicResult

AddOffsetsToTxnRequest 0-4 flexible 3+
  transactionalId: string
  producerId: int64
  producerEpoch: int16
  groupId: string

AddOffsetsToTxnResponse 0-4 flexible 3+
  throttleTimeMs: int32
  errorCode: int16

EndTxnRequest 0-5 flexible 3+
  transactionalId: string
  producerId: int64
  producerEpoch: int16
  committed: bool

EndTxnResponse 0-5 flexible 3+
  throttleTimeMs: int32
  errorCode: int16
  producerId: int64 5+ = -1
  producerEpoch: int16 5+ = -1

WriteTxnMarkersRequest 1-2 flexible 1+
  markers: []{}
    producerId: int64
    producerEpoch: int16
    transactionResult: bool
    topics: []{}
      name: string
      partitionIndexes: []int32
    coordinatorEpoch: int32
    transactionVersion: int8 2+

TopicErrors
  name: string
  partitions: []{}
    partitionIndex: int32
    errorCode: int16

WriteTxnMarkersResponse 1-2 flexible 1+
  markers: []{}
    producerId: int64
    topics: []TopicErrors

TxnOffsetCommitRequest 0-5 flexible 3+
  transactionalId: string
  groupId: string
  producerId: int64
  producerEpoch: int16
  generationId: int32 3+ = -1
  memberId: string 3+
  groupInstanceId: string? 3+
  topics: []{}
    name: string
    partitions: []{}
      partitionIndex: int32
      committedOffset: int64
      committedLeaderEpoch: int32 2+ = -1
      committedMetadata: string?

TxnOffsetCommitResponse 0-5 flexible 3+
  throttleTimeMs: int32
  topics: []TopicErrors

DescribeProducersRequest 0-0 flexible 0+
  topics: []{}
    name: string
    partitionIndexes: []int32

DescribeProducersResponse 0-0 flexible 0+
  throttleTimeMs: int32
  topics: []{}
    name: string
    partitions: []{}
      partitionIndex: int32
      errorCode: int16
      errorMessage: string?
      activeProducers: []{}
        producerId: int64
        producerEpoch: int32
        lastSequence: int32 = -1
        lastTimestamp: int64 = -1
        coordinatorEpoch: int32
        currentTxnStartOffset: int64 = -1

DescribeTransactionsRequest 0-0 flexible 0+
  transactionalIds: []string

DescribeTransactionsResponse 0-0 flexible 0+
  throttleTimeMs: int32
  transactionStates: []{}
    errorCode: int16
    transactionalId: string
    transactionState: string
    transactionTimeoutMs: int32
    transactionStartTimeMs: int64
    producerId: int64
    producerEpoch: int16
    topics: []{}
      topic: string
      partitions: []int32

ListTransactionsRequest 0-2 flexible 0+
  stateFilters: []string
  producerIdFilters: []int64
  durationFilter: int64 1+ = -1
  transactionalIdPattern: string? 2+

ListTransactionsResponse 0-2 flexible 0+
  throttleTimeMs: int32
  errorCode: int16
  unknownStateFilters: []string
  transactionStates: []{}
    transactionalId: string
    producerId: int64
    transactionState: string
"""
