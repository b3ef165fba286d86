"""Messages of the protocol: the cluster: versions, topics, nodes, coordinators.

`wire.message_tables` explains the notation below.
"""

TABLE = """
ApiVersionsRequest 0-4 flexible 3+
  clientSoftwareName: string 3+
  clientSoftwareVersion: string 3+

ApiVersionsResponse 0-4 flexible 3+
  errorCode: int16
  apiKeys: []{}
    apiKey: int16
    minVersion: int16
    maxVersion: int16
  throttleTimeMs: int32 1+
  supportedFeatures: []{} 3+ tag 0
    name: string
    minVersion: int16
    maxVersion: int16
  finalizedFeaturesEpoch: int64 3+ tag 1 = -1
  finalizedFeatures: []{} 3+ tag 2
    name: string
    maxVersionLevel: int16
    minVersionLevel: int16
  zkMigrationReady: bool 3+ tag 3

MetadataRequest 0-13 flexible 9+
  topics: []{} null 1+
    topicId: uuid 10+
    name: string null 10+
  allowAutoTopicCreation: bool 4+ = true
  includeClusterAuthorizedOperations: bool 8-10
  includeTopicAuthorizedOperations: bool 8+

MetadataResponse 0-13 flexible 9+
  throttleTimeMs: int32 3+
  brokers: []{}
    nodeId: int32
    host: string
    port: int32
    rack: string? 1+
  clusterId: string? 2+
  controllerId: int32 1+ = -1
  topics: []{}
    errorCode: int16
    name: string null 12+
    topicId: uuid 10+
    isInternal: bool 1+
    partitions: []{}
      errorCode: int16
      partitionIndex: int32
      leaderId: int32
      leaderEpoch: int32 7+ = -1
      replicaNodes: []int32
      isrNodes: []int32
      offlineReplicas: []int32 5+
    topicAuthorizedOperations: int32 8+ = -2147483648
  clusterAuthorizedOperations: int32 8-10 = -2147483648
  errorCode: int16 13+

DescribeClusterRequest 0-2 flexible 0+
  includeClusterAuthorizedOperations: bool
  endpointType: int8 1+ = 1
  includeFencedBrokers: bool 2+

DescribeClusterResponse 0-2 flexible 0+
  throttleTimeMs: int32
  errorCode: int16
  errorMessage: string?
  endpointType: int8 1+ = 1
  clusterId: string
  controllerId: int32 = -1
  brokers: []{}
    brokerId: int32
    host: string
    port: int32
    rack: string?
    isFenced: bool 2+
  clusterAuthorizedOperations: int32 = -2147483648

DescribeTopicPartitionsRequest 0-0 flexible 0+
  topics: []{}
    name: string
  responsePartitionLimit: int32 = 2000
  cursor: {}?
    topicName: string
    partitionIndex: int32

DescribeTopicPartitionsResponse 0-0 flexible 0+
  throttleTimeMs: int32
  topics: []{}
    errorCode: int16
    name: string?
    topicId: uuid
    isInternal: bool
    partitions: []{}
      errorCode: int16
      partitionIndex: int32
      leaderId: int32
      leaderEpoch: int32 = -1
      replicaNodes: []int32
      isrNodes: []int32
      eligibleLeaderReplicas: []int32?
      lastKnownElr: []int32?
      offlineReplicas: []int32
    topicAuthorizedOperations: int32 = -2147483648
  nextCursor: {}?
    topicName: string
    partitionIndex: int32

DescribeQuorumRequest 0-2 flexible 0+
  topics: []{}
    topicName: string
    partitions: []{}
      partitionIndex: int32

ReplicaState
  replicaId: int32
  replicaDirectoryId: uuid 2+
  logEndOffset: int64
  lastFetchTimestamp: int64 1+ = -1
  lastCaughtUpTimestamp: int64 1+ = -1

DescribeQuorumResponse 0-2 flexible 0+
  errorCode: int16
  errorMessage: string? 2+
  topics: []{}
    topicName: string
    partitions: []{}
      partitionIndex: int32
      errorCode: int16
      errorMessage: string? 2+
      leaderId: int32
      leaderEpoch: int32
      highWatermark: int64
      currentVoters: []ReplicaState
      observers: []ReplicaState
  nodes: []{} 2+
    nodeId: int32
    listeners: []{}
      name: string
      host: string
      port: uint16

FindCoordinatorRequest 0-6 flexible 3+
  key: string 0-3
  keyType: int8 1+
  coordinatorKeys: []string 4+

FindCoordinatorResponse 0-6 flexible 3+
  throttleTimeMs: int32 1+
  errorCode: int16 0-3
  errorMessage: string? 1-3
  nodeId: int32 0-3
  host: string 0-3
  port: int32 0-3
  coordinators: []{} 4+
    key: string
    nodeId: int32
    host: string
    port: int32
    errorCode: int16
    errorMessage: string?

UnregisterBrokerRequest 0-0 flexible 0+
  brokerId: int32

UnregisterBrokerResponse 0-0 flexible 0+
  throttleTimeMs: int32
  errorCode: int16
  errorMessage: string?

GetTelemetrySubscriptionsRequest 0-0 flexible 0+
  clientInstanceId: uuid

GetTelemetrySubscriptionsResponse 0-0 flexible 0+
  throttleTimeMs: int32
  errorCode: int16
  clientInstanceId: uuid
  subscriptionId: int32
  acceptedCompressionTypes: []int8
  pushIntervalMs: int32
  telemetryMaxBytes: int32
  deltaTemporality: bool
  requestedMetrics: []string
"""
