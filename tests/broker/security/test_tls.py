from __future__ import annotations

import pytest

from stratalog.broker.security.listeners import Listener, SecurityProtocol
from stratalog.broker.security.tls import PrincipalRules, distinguished_name, tls_context
from stratalog.errors import ConfigError
from tests.looping import for_each

SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Acme, Inc."),),
    (("organizationalUnitName", "Eng"), ("organizationalUnitName", "Ops")),
    (("commonName", "alice"),),
)


def test_names_are_written_as_java_writes_them() -> None:
    assert distinguished_name(SUBJECT) == r"CN=alice,OU=Eng+OU=Ops,O=Acme\, Inc.,C=DE"
    assert distinguished_name(((("emailAddress", "a@b.c"),),)) == (
        "1.2.840.113549.1.9.1=#1605614062 2e63".replace(" ", "")
    )
    assert distinguished_name(((("commonName", " x "),),)) == "CN=\\ x\\ "


@for_each(
    "case",
    [
        (None, "CN=Alice,OU=x"),
        ("DEFAULT", "CN=Alice,OU=x"),
        ("RULE:^CN=(.*?),OU=(.*)$/$1@$2/", "Alice@x"),
        ("RULE:^CN=(.*?),.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),.*$/$1/U, DEFAULT", "ALICE"),
        ("RULE:^O=.*$/none/,RULE:^CN=(.*?),OU=x$/$1/,DEFAULT", "Alice"),
        ("RULE:^O=.*$/none/", "CN=Alice,OU=x"),
        (r"RULE:^CN=(.*?),.*$/\/$1/", "/Alice"),
    ],
)
def test_rules_from_names_to_users(case: tuple[str | None, str]) -> None:
    rules, user = case
    assert PrincipalRules(rules).apply("CN=Alice,OU=x") == user


def test_principals() -> None:
    rules = PrincipalRules("RULE:^CN=(.*?),.*$/$1/")
    assert rules.principal({"subject": SUBJECT}) == "User:alice"
    assert rules.principal({}) == rules.principal(None) == "User:ANONYMOUS"


@for_each("text", ["RULE:", "RULE:a/b", "RULE:a/b/X", "RULE:(/b/", "default", "DEFAULT x"])
def test_wrong_rules(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalRules(text)


@for_each(
    "case",
    [
        ({}, "ssl.keystore.location: SSL://127.0.0.1:0 needs the server's key"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "No such file or directory"),
        ({"ssl.keystore.location": __file__}, "not a private key and its certificate in PEM"),
        (
            {"ssl.keystore.location": "x.jks", "ssl.keystore.type": "JKS"},
            "ssl.keystore.type: 'JKS' is not supported, only PEM",
        ),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "'TLSv1.1' is not supported; use TLSv1.2, TLSv1.3"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y"}, "ssl.keystore.key"),
    ],
)
def test_wrong_settings_are_named(case: tuple[dict[str, str], str]) -> None:
    settings, reason = case
    with pytest.raises(ConfigError) as caught:
        tls_context(Listener("SSL", SecurityProtocol.SSL, settings=settings))
    assert reason in str(caught.value)
