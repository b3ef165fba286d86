"""What the format layer reads from: any contiguous run of bytes."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
