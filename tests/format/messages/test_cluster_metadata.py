"""The golden dump of `__cluster_metadata` covers the common types; here is what it has not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import StratalogError
from stratalog.format.messages.cluster_metadata import read_metadata_record
from stratalog.format.messages.schema import to_json

UUID = "00000000000000000000000000000001"
UUID_JSON = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize(
    ("value", "name", "fields"),
    [
        ("01 01 00 00000001 0000000000000002 00", "UNREGISTER_BROKER_RECORD",
         '{"brokerId":1,"brokerEpoch":2}'),
        (f"01 05 02 00000000 {UUID} 03 00 05 02 00000001 05 01 00 08 11 02 {UUID}",
         "PARTITION_CHANGE_RECORD",
         f'{{"partitionId":0,"topicId":"{UUID_JSON}","isr":[1],"leaderRecoveryState":0,'
         f'"directories":["{UUID_JSON}"]}}'),
        (f"01 05 02 00000000 {UUID} 02 06 05 02 00000002 07 01 01", "PARTITION_CHANGE_RECORD",
         f'{{"partitionId":0,"topicId":"{UUID_JSON}","eligibleLeaderReplicas":[2],'
         '"lastKnownElr":[]}'),
        ("01 04 00 02 02 74 02 6b 00 00", "CONFIG_RECORD",
         '{"resourceType":2,"resourceName":"t","name":"k","value":null}'),
        ("01 07 00 00000001 0000000000000002 00", "FENCE_BROKER_RECORD", '{"id":1,"epoch":2}'),
        ("01 08 00 00000001 0000000000000002 00", "UNFENCE_BROKER_RECORD", '{"id":1,"epoch":2}'),
        (f"01 09 00 {UUID} 00", "REMOVE_TOPIC_RECORD", f'{{"topicId":"{UUID_JSON}"}}'),
        ("01 0e 00 02 05 75736572 00 00 02 6b 4090000000000000 00 00", "CLIENT_QUOTA_RECORD",
         '{"entity":[{"entityType":"user","entityName":null}],"key":"k","value":1024.0,'
         '"remove":false}'),
        ("01 0b 00 02 75 01 03 0102 02 ff 01 00001000 00", "USER_SCRAM_CREDENTIAL_RECORD",
         '{"name":"u","mechanism":1,"salt":"AQI=","storedKey":"/w==","serverKey":"",'
         '"iterations":4096}'),
        (f"01 12 00 {UUID} 02 02 74 03 02 70 02 2a 03 02 00", "ACCESS_CONTROL_ENTRY_RECORD",
         f'{{"id":"{UUID_JSON}","resourceType":2,"resourceName":"t","patternType":3,'
         '"principal":"p","host":"*","operation":3,"permissionType":2}'),
        ("01 17 00 00", "BEGIN_TRANSACTION_RECORD", "{}"),
        ("01 19 00 01 00 03 03 6e6f", "ABORT_TRANSACTION_RECORD", '{"reason":"no"}'),
        ("01 1a 00 02 74 00", "REMOVE_DELEGATION_TOKEN_RECORD", '{"tokenId":"t"}'),
        ("01 1c 00 01 00", "CLEAR_ELR_RECORD", '{"topicName":""}'),
    ],
)  # fmt: skip
def test_records(value: str, name: str, fields: str) -> None:
    found = read_metadata_record(bytes.fromhex(value))
    assert found.kafka_name == name
    assert to_json(found.fields) == fields


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "Error while reading frame version"),
        ("00", "due to unknown frame version 0(only frame version 1 is supported)"),
        ("01 63 00", "UnsupportedVersionException: Unknown metadata id 99"),
        ("01 14 808004", "Value for version was too large."),
        ("01 14", "Error while reading version"),
        ("01 14 09", "Failed to deserialize record with type 20"),
        ("01 02 00 05", "Failed to deserialize record with type 2"),
        ("01 14 00 00 ff", "Found 1 byte(s) of garbage after 20"),
    ],
)
def test_wrong_bytes_are_told_in_kafkas_words(value: str, reason: str) -> None:
    with pytest.raises(StratalogError) as caught:
        read_metadata_record(bytes.fromhex(value))
    assert getattr(caught.value, "reason", str(caught.value)).endswith(reason)


@given(st.integers(0, 30), st.integers(0, 4), st.binary(max_size=60))
def test_any_bytes_give_a_record_or_an_error(type_id: int, version: int, data: bytes) -> None:
    try:
        found = read_metadata_record(bytes([1, type_id, version]) + data)
    except StratalogError:
        return
    assert found.type_id == type_id
    assert found.kafka_name.endswith("_RECORD")
