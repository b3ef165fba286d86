"""Messages of the protocol: authentication, credentials, ACLs and quotas.

`wire.message_tables` explains the notation below.
"""

TABLE = """
SaslHandshakeRequest 0-1
  mechanism: string

SaslHandshakeResponse 0-1
  errorCode: int16
  mechanisms: []string

SaslAuthenticateRequest 0-2 flexible 2+
  authBytes: bytes

SaslAuthenticateResponse 0-2 flexible 2+
  errorCode: int16
  errorMessage: string?
  authBytes: bytes
  sessionLifetimeMs: int64 1+

DescribeUserScramCredentialsRequest 0-0 flexible 0+
  users: []{}?
    name: string

DescribeUserScramCredentialsResponse 0-0 flexible 0+
  throttleTimeMs: int32
  errorCode: int16
  errorMessage: string?
  results: []{}
    user: string
    errorCode: int16
    errorMessage: string?
    credentialInfos: []{}
      mechanism: int8
      iterations: int32

AlterUserScramCredentialsRequest 0-0 flexible 0+
  deletions: []{}
    name: string
    mechanism: int8
  upsertions: []{}
    name: string
    mechanism: int8
    iterations: int32
    salt: bytes
    saltedPassword: bytes

AlterUserScramCredentialsResponse 0-0 flexible 0+
  throttleTimeMs: int32
  results: []{}
    user: string
    errorCode: int16
    errorMessage: string?

DescribeAclsRequest 1-3 flexible 2+
  resourceTypeFilter: int8
  resourceNameFilter: string?
  patternTypeFilter: int8 = 3
  principalFilter: string?
  hostFilter: string?
  operation: int8
  permissionType: int8

DescribeAclsResponse 1-3 flexible 2+
  throttleTimeMs: int32
  errorCode: int16
  errorMessage: string?
  resources: []{}
    resourceType: int8
    resourceName: string
    patternType: int8 = 3
    acls: []{}
      principal: string
      host: string
      operation: int8
      permissionType: int8

CreateAclsRequest 1-3 flexible 2+
  creations: []{}
    resourceType: int8
    resourceName: string
    resourcePatternType: int8 = 3
    principal: string
    host: string
    operation: int8
    permissionType: int8

CreateAclsResponse 1-3 flexible 2+
  throttleTimeMs: int32
  results: []{}
    errorCode: int16
    errorMessage: string?

DeleteAclsRequest 1-3 flexible 2+
  filters: []DescribeAclsRequest

DeleteAclsResponse 1-3 flexible 2+
  throttleTimeMs: int32
  filterResults: []{}
    errorCode: int16
    errorMessage: string?
    matchingAcls: []{}
      errorCode: int16
      errorMessage: string?
      resourceType: int8
      resourceName: string
      patternType: int8 = 3
      principal: string
      host: string
      operation: int8
      permissionType: int8

DescribeClientQuotasRequest 0-1 flexible 1+
  components: []{}
    entityType: string
    matchType: int8
    match: string?
  strict: bool

DescribeClientQuotasResponse 0-1 flexible 1+
  throttleTimeMs: int32
  errorCode: int16
  errorMessage: string?
  entries: []{}?
    entity: []{}
      entityType: string
      entityName: string?
    values: []{}
      key: string
      value: float64

AlterClientQuotasRequest 0-1 flexible 1+
  entries: []{}
    entity: []{}
      entityType: string
      entityName: string?
    ops: []{}
      key: string
      value: float64
      remove: bool
  validateOnly: bool

AlterClientQuotasResponse 0-1 flexible 1+
  throttleTimeMs: int32
  entries: []{}
    errorCode: int16
    errorMessage: string?
    entity: []{}
      entityType: string
      entityName: string?
"""
