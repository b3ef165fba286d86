from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from stratalog.broker.authorization import CLUSTER_NAME, Authorizer, Operation, Resource
from stratalog.broker.requests import Session
from stratalog.broker.security.acls import (
    ANY_PRINCIPAL,
    Acl,
    AclAuthorizer,
    AclFilter,
    PatternType,
    Permission,
    parse_acls,
)
from stratalog.errors import ConfigError
from tests.looping import for_each

TOPIC, GROUP = Resource.TOPIC, Resource.GROUP
HOST = "10.0.0.1"


ALICE = Session(HOST, principal="User:alice")


def _authorizer(rules: str) -> AclAuthorizer:
    return AclAuthorizer(parse_acls(rules))


@for_each(
    "case",
    [
        # rules, what alice may do from 10.0.0.1 on topic orders-1
        ("", []),
        ("allow User:alice Read on topic orders-1", ["READ", "DESCRIBE"]),
        ("allow User:alice Write on topic orders-1", ["WRITE", "DESCRIBE"]),
        ("allow User:alice Delete on topic orders-1", ["DELETE", "DESCRIBE"]),
        ("allow User:alice Alter on topic orders-1", ["ALTER", "DESCRIBE"]),
        ("allow User:alice Create on topic orders-1", ["CREATE"]),
        ("allow User:alice Describe on topic orders-1", ["DESCRIBE"]),
        ("allow User:alice AlterConfigs on topic *", ["ALTER_CONFIGS", "DESCRIBE_CONFIGS"]),
        ("allow User:alice describe_configs on topic *", ["DESCRIBE_CONFIGS"]),
        ("allow User:bob Read on topic orders-1", []),
        ("allow User:* Read on topic orders-1", ["READ", "DESCRIBE"]),
        ("allow User:alice Read on topic orders", []),
        ("allow User:alice Create on topic prefix orders", ["CREATE"]),
        ("allow User:alice Create on topic prefix orders-1", ["CREATE"]),
        ("allow User:alice Create on topic prefix orders-11", []),
        ("allow User:alice Create on topic * from 10.0.0.1", ["CREATE"]),
        ("allow User:alice Create on topic * from 10.0.0.2", []),
        ("allow User:alice Create on group orders-1", []),
        (
            "allow User:alice Read on topic *\ndeny User:alice Describe on topic orders-1",
            ["READ"],
        ),
        (
            "allow User:alice Read on topic *\ndeny User:* Read on topic prefix o",
            ["DESCRIBE"],  # denying READ does not deny what it includes
        ),
        ("allow User:alice All on topic *\ndeny User:alice All on topic orders-1", []),
        (
            "deny User:alice Read on topic * from 10.0.0.2\nallow User:alice Read on topic *",
            ["READ", "DESCRIBE"],
        ),
    ],
)
def test_what_rules_allow(case: tuple[str, list[str]]) -> None:
    rules, expected = case
    authorizer = _authorizer(rules)
    allowed = {
        operation.name
        for operation in Operation
        if operation > Operation.ALL and authorizer.allows(ALICE, operation, TOPIC, "orders-1")
    }
    assert allowed == set(expected)


def test_all_means_every_operation() -> None:
    authorizer = _authorizer("allow User:alice All on topic o\nallow User:alice All on cluster")
    for each in (authorizer, Authorizer()):
        # What a real broker answered to its super user.
        assert each.authorized_operations(ALICE, TOPIC, "o") == 3576
        assert each.authorized_operations(ALICE, Resource.CLUSTER, CLUSTER_NAME) == 8096
    assert Authorizer().authorized_operations(ALICE, GROUP, "g") == 3400


def test_super_users_may_do_what_is_denied() -> None:
    rules = parse_acls("deny User:* All on topic *")
    authorizer = AclAuthorizer(rules, super_users={"User:alice"})
    assert authorizer.allows(ALICE, Operation.READ, TOPIC, "orders")
    assert not authorizer.allows(Session(HOST), Operation.READ, TOPIC, "orders")


def test_a_resource_without_any_acl_can_be_open_to_everyone() -> None:
    rules = "allow User:bob Read on topic orders\nallow User:bob Read on topic prefix app-"
    authorizer = AclAuthorizer(parse_acls(rules), allows_without_acl=True)
    assert authorizer.allows(ALICE, Operation.WRITE, TOPIC, "other")
    assert authorizer.allows(ALICE, Operation.READ, GROUP, "orders")
    assert not authorizer.allows(ALICE, Operation.READ, TOPIC, "orders")
    assert not authorizer.allows(ALICE, Operation.READ, TOPIC, "app-1")


def test_decisions_are_forgotten_when_rules_change() -> None:
    authorizer = _authorizer("allow User:alice Read on topic orders")
    assert authorizer.allows(ALICE, Operation.READ, TOPIC, "orders")
    authorizer.replace([])
    assert not authorizer.allows(ALICE, Operation.READ, TOPIC, "orders")


@for_each(
    "case",
    [
        ("", False),
        ("allow User:alice Write on topic orders", True),
        ("allow User:alice Read on topic orders", False),
        ("allow User:alice All on topic prefix o", True),
        ("allow User:bob Write on topic orders", False),
        ("allow User:alice Write on topic orders\ndeny User:alice Write on topic orders", False),
        ("allow User:alice Write on topic orders\ndeny User:* All on topic prefix or", False),
        ("allow User:alice Write on topic prefix o\ndeny User:* All on topic prefix or", True),
        ("allow User:alice Write on topic prefix o\ndeny User:* All on topic orders", True),
        ("allow User:alice Write on topic orders\ndeny User:alice Write on topic *", False),
        ("allow User:alice Write on topic *\ndeny User:alice Write on topic orders", True),
    ],
)
def test_whether_any_resource_is_allowed(case: tuple[str, bool]) -> None:
    rules, expected = case
    assert _authorizer(rules).allows_any(ALICE, Operation.WRITE, TOPIC) is expected


def test_the_index_by_name_finds_what_a_scan_finds() -> None:
    rng = random.Random(5)
    names = ["".join(letters) for n in (1, 2, 3) for letters in itertools.product("ab", repeat=n)]
    for _ in range(60):
        acls = [
            Acl(
                TOPIC,
                rng.choice([*names, "*"]),
                rng.choice([PatternType.LITERAL, PatternType.PREFIXED]),
                rng.choice(["User:alice", "User:bob", ANY_PRINCIPAL]),
                rng.choice([HOST, "10.0.0.2", "*"]),
                rng.choice([Operation.READ, Operation.DESCRIBE, Operation.ALL]),
                rng.choice([Permission.ALLOW, Permission.DENY]),
            )
            for _ in range(rng.randrange(6))
        ]
        authorizer = AclAuthorizer(acls)
        for name in names:
            found = [acl for acl in acls if _is_on(acl, name) and acl.is_for(ALICE)]
            found = [acl for acl in found if acl.covers(Operation.DESCRIBE)]
            permissions = {acl.permission for acl in found}
            expected = permissions == {Permission.ALLOW}
            actual = authorizer.allows(ALICE, Operation.DESCRIBE, TOPIC, name)
            assert actual is expected, (name, acls)


def _is_on(acl: Acl, name: str) -> bool:
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in {name, "*"}


# -- filters

_RULES = parse_acls(
    """
    allow User:alice Read on topic orders
    allow User:alice Read on topic prefix ord
    deny User:bob Write on topic * from 10.0.0.2
    allow User:bob Read on group orders
    """
)


@for_each(
    "case",
    [
        (Resource.ANY, None, PatternType.ANY, [0, 1, 2, 3]),
        (TOPIC, None, PatternType.ANY, [0, 1, 2]),
        (TOPIC, "orders", PatternType.ANY, [0]),
        (TOPIC, "orders", PatternType.LITERAL, [0]),
        (TOPIC, "orders", PatternType.PREFIXED, []),
        (TOPIC, "ord", PatternType.PREFIXED, [1]),
        (TOPIC, None, PatternType.PREFIXED, [1]),
        (TOPIC, "orders", PatternType.MATCH, [0, 1, 2]),
        (TOPIC, "ordinary", PatternType.MATCH, [1, 2]),
        (TOPIC, "*", PatternType.LITERAL, [2]),
        (Resource.ANY, "orders", PatternType.ANY, [0, 3]),
    ],
)
def test_filters_by_resource(case: tuple[Resource, str | None, PatternType, list[int]]) -> None:
    resource, name, pattern, expected = case
    chosen = AclFilter(resource, name, pattern, None, None, Operation.ANY, Permission.ANY)
    assert [number for number, acl in enumerate(_RULES) if chosen.matches(acl)] == expected


def test_filters_by_entry() -> None:
    anything = AclFilter(
        Resource.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY
    )

    def found(**fields: object) -> list[int]:
        chosen = anything._replace(**fields)  # type: ignore[arg-type]  # fields vary
        return [number for number, acl in enumerate(_RULES) if chosen.matches(acl)]

    assert found(principal="User:bob") == [2, 3]
    assert found(host="10.0.0.2") == [2]
    assert found(host="*") == [0, 1, 3]
    assert found(operation=Operation.READ) == [0, 1, 3]
    assert found(permission=Permission.DENY) == [2]


# -- the file


def test_a_file_of_rules() -> None:
    acls = parse_acls(
        """
        # who reads
        allow User:alice Read,Describe on topic orders   # and more
        deny "User:CN=bob, O=x" ALL on transactional-id prefix t- from 10.0.0.1
        allow User:carol IdempotentWrite on cluster
        """
    )
    assert acls[0] == Acl(
        TOPIC,
        "orders",
        PatternType.LITERAL,
        "User:alice",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )
    assert acls[1].operation is Operation.DESCRIBE
    assert acls[2] == Acl(
        Resource.TRANSACTIONAL_ID,
        "t-",
        PatternType.PREFIXED,
        "User:CN=bob, O=x",
        "10.0.0.1",
        Operation.ALL,
        Permission.DENY,
    )
    assert (acls[3].resource, acls[3].name) == (Resource.CLUSTER, CLUSTER_NAME)


@for_each(
    "case",
    [
        ("permit User:a Read on topic x", "'permit' is not a valid permission; use one of allow"),
        ("allow a Read on topic x", "'a' is not a principal; write User:a"),
        ("allow User:a Reed on topic x", "'Reed' is not a valid operation"),
        ("allow User:a Read on topics x", "'topics' is not a valid resource"),
        ("allow User:a Read topic x", "expected: allow|deny PRINCIPAL"),
        ("allow User:a Read on topic", "expected one name"),
        ("allow User:a Read on topic x y", "expected one name"),
        ("allow User:a Read on cluster x", "the only name of a cluster"),
        ('allow User:a Read on topic "x', "No closing quotation"),
    ],
)
def test_errors_in_a_file_name_the_line(case: tuple[str, str]) -> None:
    line, reason = case
    with pytest.raises(ConfigError) as caught:
        parse_acls(f"# rules\n{line}\n", Path("acls.txt"))
    assert str(caught.value).startswith("acls.txt: line 2: ")
    assert reason in str(caught.value)
