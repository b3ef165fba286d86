"""Arrow over numpy's memory: the same columns as pyarrow's own, without pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from stratalog.format.column_types import int64_numbers, numpy_column, repeated_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.golden.cases import GoldenCase


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -2, 3], pa.int64()),
        ([1, -2, 127], pa.int8()),
        ([1, -2, 3], pa.int16()),
        ([1, -(2**31), 2**31 - 1], pa.int32()),
        ([0, -1, 2**60], pa.timestamp("us", "UTC")),
        ([True, False, True] * 7, pa.bool_()),
        ([], pa.int32()),
        ([], pa.bool_()),
    ],
    ids=str,
)
def test_columns_are_those_of_pyarrow(values: list[int], kind: pa.DataType) -> None:
    numbers = np.array(values, bool if pa.types.is_boolean(kind) else np.int64)
    column = numpy_column(numbers, kind)
    column.validate(full=True)
    assert column.equals(pa.array(values, kind))


@pytest.mark.parametrize(("text", "count"), [("orders", 3), ("ö", 5), ("", 2), ("x", 0)])
def test_a_text_again_and_again(text: str, count: int) -> None:
    column = repeated_text(text, count)
    column.validate(full=True)
    assert column.equals(pa.array([text] * count, pa.string()))


def test_what_is_not_contiguous_is_copied() -> None:
    numbers = np.arange(10)[::3]
    assert numpy_column(numbers, pa.int64()).to_pylist() == [0, 3, 6, 9]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ms", "UTC")], ids=str)
def test_numbers_of_a_part_of_a_column(kind: pa.DataType) -> None:
    column = pa.array(range(10), pa.int64()).cast(kind)
    assert int64_numbers(column).tolist() == list(range(10))
    assert int64_numbers(column[3:7]).tolist() == [3, 4, 5, 6]
    assert int64_numbers(column[:0]).tolist() == []
    assert int64_numbers(pa.nulls(0, kind)).tolist() == []


@pytest.mark.slow
def test_reading_columns_does_not_import_pandas(golden: Callable[[str], GoldenCase]) -> None:
    program = (
        "import sys, stratalog\n"
        "for batch in stratalog.open_partition(sys.argv[1]).read_columns(start=1): pass\n"
        "assert batch.num_rows and 'numba' in sys.modules\n"
        "assert 'pandas' not in sys.modules\n"
    )
    command = [sys.executable, "-c", program, str(golden("java-lz4").partition_dir)]
    subprocess.run(command, check=True, timeout=300)
