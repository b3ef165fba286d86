"""Certificates of one authority, made for a run: the broker's, clients', and one that is not
trusted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import trustme


class Certificates(NamedTuple):
    """Files in PEM."""

    authority: Path
    server: Path
    """Key and certificate of the broker on 127.0.0.1."""
    client: Path
    """Key and certificate of a client with the name CN=alice."""
    stranger: Path
    """The same from an authority that nobody trusts."""


@cache
def certificates() -> Certificates:
    """Made once: keys take a while."""
    root = Path(mkdtemp(prefix="stratalog-certificates-"))
    authority = trustme.CA()
    found = Certificates(
        root / "authority.pem", root / "server.pem", root / "client.pem", root / "stranger.pem"
    )
    authority.cert_pem.write_to_path(str(found.authority))
    server = authority.issue_cert("127.0.0.1", "localhost")
    server.private_key_and_cert_chain_pem.write_to_path(str(found.server))
    for path, issuer in ((found.client, authority), (found.stranger, trustme.CA())):
        client = issuer.issue_cert("client.test", common_name="alice")
        client.private_key_and_cert_chain_pem.write_to_path(str(path))
    return found
