"""What to dump of a file and how: the options of Kafka's tool, and some it does not have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from stratalog.format.filters import Filters
from stratalog.maintenance.dump.decoders import (
    FORMATS,
    UTF_8,
    Format,
    PlainDecoder,
    RecordDecoder,
)

MAX_BYTES_DEFAULT: Final = (1 << 31) - 1
MESSAGE_BYTES_MAX_DEFAULT: Final = 5 << 20


@dataclass(frozen=True)
class DumpOptions:
    """Names follow Kafka's flags."""

    print_data: bool = False
    deep_iteration: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    skip_record_metadata: bool = False
    max_bytes: int = MAX_BYTES_DEFAULT
    max_message_bytes: int = MESSAGE_BYTES_MAX_DEFAULT
    decoder: RecordDecoder = field(default_factory=PlainDecoder)
    header_format: Format = FORMATS[UTF_8]
    """Of header values, which only JSON shows."""
    notices: tuple[str, ...] = ()
    """Printed ahead of each log: the tool's remarks on decoders named by their old class."""
    filters: Filters = field(default_factory=Filters)
    is_bulk: bool | None = None
    """Whether compiled kernels render logs; None: where that is faster. The text is the same."""
    limit: int | None = None
    """Of records, or of batches when records are not looked at, or of entries; over a whole run."""

    @property
    def is_deep(self) -> bool:
        """Whether records are decoded: printing data needs it, and so does looking for a key."""
        return self.deep_iteration or self.print_data or self.filters.key is not None

    @property
    def is_whole(self) -> bool:
        """Whether logs are read to their end, so that trailing bytes are worth a word."""
        return self.max_bytes == MAX_BYTES_DEFAULT
