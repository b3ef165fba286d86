"""Log directories as options name them: local paths, as driver and executors both see them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def parse_paths(given: Mapping[str, str], advice: str) -> tuple[Path, ...]:
    """One directory, several after commas, or a JSON list (which `load([...])` makes).

    `advice` is what the user is told who gives none."""
    texts: list[str] = []
    for name in ("path", "paths"):
        text = given.get(name, "").strip()
        if text.startswith("["):
            texts += _json_list(name, text)
        else:
            texts += [part.strip() for part in text.split(",") if part.strip()]
    if not texts:
        raise ConfigError("path", advice)
    return tuple(_local(text) for text in dict.fromkeys(texts))


def _json_list(name: str, text: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(name, f"not a JSON list of paths: {error}", value=text) from None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ConfigError(name, "not a JSON list of paths", value=text)
    return found


def _local(text: str) -> Path:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    if scheme is None:
        return Path(text).absolute()
    if scheme[1].lower() != "file":
        raise ConfigError(
            "path",
            f"{text}: only directories that are mounted on driver and executors can be used, "
            f"not {scheme[1]}:",
            value=text,
        )
    return Path(re.sub(r"\A//[^/]*", "", text[len("file:") :])).absolute()
