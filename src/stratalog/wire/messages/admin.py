"""Messages of the protocol: topics, their settings and their files.

`wire.message_tables` explains the notation below.
"""

TABLE = """
CreateTopicsRequest 2-7 flexible 5+
  topics: []{}
    name: string
    numPartitions: int32
    replicationFactor: int16
    assignments: []{}
      partitionIndex: int32
      brokerIds: []int32
    configs: []{}
      name: string
      value: string?
  timeoutMs: int32 = 60000
  validateOnly: bool

CreateTopicsResponse 2-7 flexible 5+
  throttleTimeMs: int32
  topics: []{}
    name: string
    topicId: uuid 7+
    errorCode: int16
    errorMessage: string?
    topicConfigErrorCode: int16 5+ tag 0
    numPartitions: int32 5+ = -1
    replicationFactor: int16 5+ = -1
    configs: []{}? 5+
      name: string
      value: string?
      readOnly: bool
      configSource: int8 = -1
      isSensitive: bool

DeleteTopicsRequest 1-6 flexible 4+
  topicNames: []string 1-5
  topics: []{} 6+
    name: string?
    topicId: uuid
  timeoutMs: int32

DeleteTopicsResponse 1-6 flexible 4+
  throttleTimeMs: int32
  responses: []{}
    name: string null 6+
    topicId: uuid 6+
    errorCode: int16
    errorMessage: string? 5+

CreatePartitionsRequest 0-3 flexible 2+
  topics: []{}
    name: string
    count: int32
    assignments: []{}?
      brokerIds: []int32
  timeoutMs: int32
  validateOnly: bool

CreatePartitionsResponse 0-3 flexible 2+
  throttleTimeMs: int32
  results: []{}
    name: string
    errorCode: int16
    errorMessage: string?

DeleteRecordsRequest 0-2 flexible 2+
  topics: []{}
    name: string
    partitions: []{}
      partitionIndex: int32
      offset: int64
  timeoutMs: int32

DeleteRecordsResponse 0-2 flexible 2+
  throttleTimeMs: int32
  topics: []{}
    name: string
    partitions: []{}
      partitionIndex: int32
      lowWatermark: int64
      errorCode: int16

DescribeConfigsRequest 1-4 flexible 4+
  resources: []{}
    resourceType: int8
    resourceName: string
    configurationKeys: []string?
  includeSynonyms: bool
  includeDocumentation: bool 3+

DescribeConfigsResponse 1-4 flexible 4+
  throttleTimeMs: int32
  results: []{}
    errorCode: int16
    errorMessage: string?
    resourceType: int8
    resourceName: string
    configs: []{}
      name: string
      value: string?
      readOnly: bool
      configSource: int8 = -1
      isSensitive: bool
      synonyms: []{}
        name: string
        value: string?
        source: int8
      configType: int8 3+
      documentation: string? 3+

AlterConfigsRequest 0-2 flexible 2+
  resources: []{}
    resourceType: int8
    resourceName: string
    configs: []{}
      name: string
      value: string?
  validateOnly: bool

AlterConfigsResourceResponse
  errorCode: int16
  errorMessage: string?
  resourceType: int8
  resourceName: string

AlterConfigsResponse 0-2 flexible 2+
  throttleTimeMs: int32
  responses: []AlterConfigsResourceResponse

IncrementalAlterConfigsRequest 0-1 flexible 1+
  resources: []{}
    resourceType: int8
    resourceName: string
    configs: []{}
      name: string
      configOperation: int8
      value: string?
  validateOnly: bool

IncrementalAlterConfigsResponse 0-1 flexible 1+
  throttleTimeMs: int32
  responses: []AlterConfigsResourceResponse

ListConfigResourcesRequest 0-1 flexible 0+
  resourceTypes: []int8 1+

ListConfigResourcesResponse 0-1 flexible 0+
  throttleTimeMs: int32
  errorCode: int16
  configResources: []{}
    resourceName: string
    resourceType: int8 1+ = 16

DescribeLogDirsRequest 1-5 flexible 2+
  topics: []{}?
    topic: string
    partitions: []int32

DescribeLogDirsResponse 1-5 flexible 2+
  throttleTimeMs: int32
  errorCode: int16 3+
  results: []{}
    errorCode: int16
    logDir: string
    topics: []{}
      name: string
      partitions: []{}
        partitionIndex: int32
        partitionSize: int64
        offsetLag: int64
        isFutureKey: bool
    totalBytes: int64 4+ = -1
    usableBytes: int64 4+ = -1
    isCordoned: bool 5+

ElectLeadersRequest 0-2 flexible 2+
  electionType: int8 1+
  topicPartitions: []{}?
    topic: string
    partitions: []int32
  timeoutMs: int32 = 60000

ElectLeadersResponse 0-2 flexible 2+
  throttleTimeMs: int32
  errorCode: int16 1+
  replicaElectionResults: []{}
    topic: string
    partitionResult: []{}
      partitionId: int32
      errorCode: int16
      errorMessage: string?

ListPartitionReassignmentsRequest 0-0 flexible 0+
  timeoutMs: int32 = 60000
  topics: []{}?
    name: string
    partitionIndexes: []int32

ListPartitionReassignmentsResponse 0-0 flexible 0+
  throttleTimeMs: int32
  errorCode: int16
  errorMessage: string?
  topics: []{}
    name: string
    partitions: []{}
      partitionIndex: int32
      replicas: []int32
      addingReplicas: []int32
      removingReplicas: []int32
"""
