"""Messages of the protocol: consumer groups and their offsets.

`wire.message_tables` explains the notation below.
"""

TABLE = """
JoinGroupRequest 0-9 flexible 6+
  groupId: string
  sessionTimeoutMs: int32
  rebalanceTimeoutMs: int32 1+ = -1
  memberId: string
  groupInstanceId: string? 5+
  protocolType: string
  protocols: []{}
    name: string
    metadata: bytes
  reason: string? 8+

JoinGroupResponse 0-9 flexible 6+
  throttleTimeMs: int32 2+
  errorCode: int16
  generationId: int32 = -1
  protocolType: string? 7+
  protocolName: string null 7+
  leader: string
  skipAssignment: bool 9+
  memberId: string
  members: []{}
    memberId: string
    groupInstanceId: string? 5+
    metadata: bytes

SyncGroupRequest 0-5 flexible 4+
  groupId: string
  generationId: int32
  memberId: string
  groupInstanceId: string? 3+
  protocolType: string? 5+
  protocolName: string? 5+
  assignments: []{}
    memberId: string
    assignment: bytes

SyncGroupResponse 0-5 flexible 4+
  throttleTimeMs: int32 1+
  errorCode: int16
  protocolType: string? 5+
  protocolName: string? 5+
  assignment: bytes

HeartbeatRequest 0-4 flexible 4+
  groupId: string
  generationId: int32
  memberId: string
  groupInstanceId: string? 3+

HeartbeatResponse 0-4 flexible 4+
  throttleTimeMs: int32 1+
  errorCode: int16

LeaveGroupRequest 0-5 flexible 4+
  groupId: string
  memberId: string 0-2
  members: []{} 3+
    memberId: string
    groupInstanceId: string?
    reason: string? 5+

LeaveGroupResponse 0-5 flexible 4+
  throttleTimeMs: int32 1+
  errorCode: int16
  members: []{} 3+
    memberId: string
    groupInstanceId: string?
    errorCode: int16

ConsumerGroupHeartbeatRequest 0-1 flexible 0+
  groupId: string
  memberId: string
  memberEpoch: int32
  instanceId: string?
  rackId: string?
  rebalanceTimeoutMs: int32 = -1
  subscribedTopicNames: []string?
  subscribedTopicRegex: string? 1+
  serverAssignor: string?
  topicPartitions: []{}?
    topicId: uuid
    partitions: []int32

ConsumerGroupHeartbeatResponse 0-1 flexible 0+
  throttleTimeMs: int32
  errorCode: int16
  errorMessage: string?
  memberId: string?
  memberEpoch: int32
  heartbeatIntervalMs: int32
  assignment: {}?
    topicPartitions: []{}
      topicId: uuid
      partitions: []int32

ConsumerGroupDescribeRequest 0-1 flexible 0+
  groupIds: []string
  includeAuthorizedOperations: bool

ConsumerGroupDescribeResponse 0-1 flexible 0+
  throttleTimeMs: int32
  groups: []{}
    errorCode: int16
    errorMessage: string?
    groupId: string
    groupState: string
    groupEpoch: int32
    assignmentEpoch: int32
    assignorName: string
    members: []{}
      memberId: string
      instanceId: string?
      rackId: string?
      memberEpoch: int32
      clientId: string
      clientHost: string
      subscribedTopicNames: []string
      subscribedTopicRegex: string?
      assignment: {}
        topicPartitions: []{}
          topicId: uuid
          topicName: string
          partitions: []int32
      targetAssignment: {}
        topicPartitions: []{}
          topicId: uuid
          topicName: string
          partitions: []int32
      memberType: int8 1+ = -1
    authorizedOperations: int32 = -2147483648

DescribeGroupsRequest 0-6 flexible 5+
  groups: []string
  includeAuthorizedOperations: bool 3+

DescribeGroupsResponse 0-6 flexible 5+
  throttleTimeMs: int32 1+
  groups: []{}
    errorCode: int16
    errorMessage: string? 6+
    groupId: string
    groupState: string
    protocolType: string
    protocolData: string
    members: []{}
      memberId: string
      groupInstanceId: string? 4+
      clientId: string
      clientHost: string
      memberMetadata: bytes
      memberAssignment: bytes
    authorizedOperations: int32 3+ = -2147483648

ListGroupsRequest 0-5 flexible 3+
  statesFilter: []string 4+
  typesFilter: []string 5+

ListGroupsResponse 0-5 flexible 3+
  throttleTimeMs: int32 1+
  errorCode: int16
  groups: []{}
    groupId: string
    protocolType: string
    groupState: string 4+
    groupType: string 5+

DeleteGroupsRequest 0-2 flexible 2+
  groupsNames: []string

DeleteGroupsResponse 0-2 flexible 2+
  throttleTimeMs: int32
  results: []{}
    groupId: string
    errorCode: int16

OffsetCommitRequest 2-10 flexible 8+
  groupId: string
  generationIdOrMemberEpoch: int32 = -1
  memberId: string
  retentionTimeMs: int64 2-4 = -1
  groupInstanceId: string? 7+
  topics: []{}
    name: string 2-9
    topicId: uuid 10+
    partitions: []{}
      partitionIndex: int32
      committedOffset: int64
      committedLeaderEpoch: int32 6+ = -1
      committedMetadata: string?

PartitionError
  partitionIndex: int32
  errorCode: int16

OffsetCommitResponse 2-10 flexible 8+
  throttleTimeMs: int32 3+
  topics: []{}
    name: string 2-9
    topicId: uuid 10+
    partitions: []PartitionError

OffsetFetchRequest 1-10 flexible 6+
  groupId: string 1-7
  topics: []{} 1-7 null 2+
    name: string
    partitionIndexes: []int32
  groups: []{} 8+
    groupId: string
    memberId: string? 9+
    memberEpoch: int32 9+ = -1
    topics: []{}?
      name: string 8-9
      topicId: uuid 10+
      partitionIndexes: []int32
  requireStable: bool 7+

OffsetFetchResponse 1-10 flexible 6+
  throttleTimeMs: int32 3+
  topics: []{} 1-7
    name: string
    partitions: []{}
      partitionIndex: int32
      committedOffset: int64
      committedLeaderEpoch: int32 5+ = -1
      metadata: string?
      errorCode: int16
  errorCode: int16 2-7
  groups: []{} 8+
    groupId: string
    topics: []{}
      name: string 8-9
      topicId: uuid 10+
      partitions: []{}
        partitionIndex: int32
        committedOffset: int64
        committedLeaderEpoch: int32 = -1
        metadata: string?
        errorCode: int16
    errorCode: int16

OffsetDeleteRequest 0-0
  groupId: string
  topics: []{}
    name: string
    partitions: []{}
      partitionIndex: int32

OffsetDeleteResponse 0-0
  errorCode: int16
  throttleTimeMs: int32
  topics: []{}
    name: string
    partitions: []PartitionError
"""
