"""Random queries have one answer: in columns, in rows, and from a copy in Parquet."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from stratalog.spark.accelerator import SETTING
from tests.effort import scaled
from tests.opening import open_logs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SEED = 20_261_117
START_MS = 1_700_000_000_000
COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "headers.key as header_keys",
    "length(value) as size",
    "get(headers, 0).value as first_header",
)
SIDES = ("in_columns", "in_rows", "in_parquet")


@pytest.fixture(scope="module")
def views(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same records as a view of each side."""
    root = tmp_path_factory.mktemp("random")
    _write(root / "logs")
    for side, is_columnar in zip(SIDES, ("true", "false"), strict=False):
        spark.conf.set(SETTING, is_columnar)
        reader = spark.read.format("stratalog").option("subscribePattern", "t.*")
        reader = reader.options(includeHeaders="true", splitBytes="4k")
        reader.load(str(root / "logs")).createOrReplaceTempView(side)
    spark.table("in_rows").coalesce(3).write.parquet(str(root / "parquet"))
    spark.read.parquet(str(root / "parquet")).createOrReplaceTempView("in_parquet")
    spark.conf.unset(SETTING)


def _write(path: Path) -> None:
    chance = random.Random(SEED)
    with open_logs(path) as logs:
        for topic, partitions in (("t-small", 1), ("t-wide", 3)):
            logs.create_topic(topic, partitions, config={"segment.bytes": 8000})
        with logs.producer() as producer:
            for number in range(600):
                value = None if chance.random() < 0.1 else f"value {number}".encode()
                producer.append(
                    chance.choice(["t-small", "t-wide", "t-wide", "t-wide"]),
                    value,
                    key=chance.choice([None, b"", b"a", b"b", b"\xff\x00"]),
                    headers=[(f"h{chance.randrange(3)}", b"x" * each) for each in _sizes(chance)],
                    timestamp=START_MS + number * 10 + chance.randrange(200),
                )
                if chance.random() < 0.1:
                    producer.flush()


def _sizes(chance: random.Random) -> range:
    return range(chance.choice([0, 0, 1, 3]))


# -- queries as text, with {view} for a side


def _condition(chance: random.Random, prefix: str = "") -> str:
    time = START_MS + chance.randrange(6500)
    choices = (
        f"{prefix}`offset` {chance.choice(['=', '<', '<=', '>', '>='])} {chance.randrange(200)}",
        f"{prefix}`offset` in ({chance.randrange(200)}, {chance.randrange(200)}, 7)",
        f"{prefix}`offset` between {chance.randrange(100)} and {chance.randrange(100, 300)}",
        f"{prefix}timestamp {chance.choice(['<', '>=', '>'])} timestamp_millis({time})",
        f"{prefix}partition {chance.choice(['=', '<', '>=', '!='])} {chance.randrange(3)}",
        f"{prefix}topic {chance.choice(['=', '<>', '<=>'])} 't-wide'",
        f"{prefix}topic like '%{chance.choice(['small', 'wide', 'x'])}'",
        f"{prefix}`offset` {chance.choice(['in', 'not in'])} (7, {chance.choice([9, 'null'])})",
        f"{prefix}`offset` {chance.choice(['=', '<', '<=>'])} {chance.choice(['5.5', 'null'])}",
        f"cast({prefix}`offset` as string) like '1%'",
        f"{prefix}timestamp {chance.choice(['=', '<', '>='])} timestamp_micros({time}500)",
        f"{prefix}timestamp in (timestamp_millis({time}), timestamp_millis({time + 50}))",
        f"date({prefix}timestamp) = date'2023-11-14'",
        f"{prefix}timestampType {chance.choice(['=', '!=', '<'])} {chance.randrange(2)}",
        f"{prefix}partition in (0, 2, {chance.choice(['1', 'null'])})",
        f"{prefix}topic is {chance.choice(['', 'not '])}null",
        f"startswith({prefix}topic, 't-{chance.choice('sw')}')",
        f"{prefix}value {chance.choice(['=', '>', '<=>'])} cast('value 3' as binary)",
        f"{prefix}value is {chance.choice(['', 'not '])}null",
        f"{prefix}key is {chance.choice(['', 'not '])}null",
        f"{prefix}key = X'61'",
        f"length({prefix}value) > {chance.randrange(6, 11)}",
        f"size({prefix}headers) = {chance.randrange(4)}",
        f"get({prefix}headers, 0).key = 'h1'",
    )
    found = " and ".join(chance.sample(choices, chance.randrange(1, 4)))
    if chance.random() < 0.3:
        found = f"({found}) or {chance.choice(choices)}"
    return f"not ({found})" if chance.random() < 0.15 else found


def _select(chance: random.Random) -> str:
    columns = chance.sample(COLUMNS, chance.randrange(1, 5))
    return f"select {', '.join(columns)} from {{view}} where {_condition(chance)}"


def _union(chance: random.Random) -> str:
    columns = ", ".join(chance.sample(COLUMNS, 2))
    return " union all ".join(
        f"(select {columns} from {{view}} where {_condition(chance)})" for _ in range(2)
    )


def _self_join(chance: random.Random) -> str:
    return (
        "select a.offset, b.timestamp, a.key from {view} a join {view} b on a.topic = b.topic "
        f"and a.partition = b.partition and a.offset = b.offset + {chance.randrange(3)} "
        f"where {_condition(chance, 'a.')} and {_condition(chance, 'b.')}"
    )


def _join(chance: random.Random) -> str:
    kind = chance.choice(["", "left ", "left semi ", "left anti ", "full "])
    other = f"(select offset, partition from {{view}} where {_condition(chance)}) b"
    return (
        f"select a.offset, a.value from {{view}} a {kind}join {other} "
        "on a.offset = b.offset and a.partition = b.partition"
    )


def _grouped(chance: random.Random) -> str:
    by = chance.choice(["topic", "partition", "key", "length(value)", "topic, partition"])
    return (
        f"select {by}, count(*), max(offset), min(timestamp), sum(length(value)) from {{view}} "
        f"where {_condition(chance)} group by {by}"
    )


def _counted(chance: random.Random) -> str:
    return f"select count(*) from {{view}} where {_condition(chance)}"


def _first(chance: random.Random) -> str:
    columns = "topic, partition, offset"
    return (
        f"select {columns}, value from {{view}} where {_condition(chance)} "
        f"order by {columns} limit {chance.randrange(30)}"
    )


KINDS = (_select, _union, _self_join, _join, _grouped, _counted, _first)


@pytest.mark.slow
@pytest.mark.usefixtures("views")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_an_answer_is_the_same_on_each_side(spark: SparkSession, kind: object) -> None:
    assert callable(kind)
    for number in range(scaled(2)):
        text = kind(random.Random(f"{SEED} {kind} {number}"))
        answers = {side: _answer(spark, text.format(view=side)) for side in SIDES}
        assert answers["in_columns"] == answers["in_parquet"], text
        assert answers["in_rows"] == answers["in_parquet"], text


@pytest.mark.usefixtures("views")
def test_a_limit_takes_some_of_the_rows(spark: SparkSession) -> None:
    """Which ones is left to each side."""
    chance = random.Random(SEED)
    for number in range(scaled(2)):
        text, count = _select(chance), chance.randrange(40)
        whole = _answer(spark, text.format(view="in_parquet"))
        for side in SIDES[:2]:
            found = _answer(spark, f"{text.format(view=side)} limit {count}")
            assert len(found) == min(count, len(whole)), (number, side, text)
            assert not [row for row in found if row not in whole], (number, side, text)


def _answer(spark: SparkSession, text: str) -> list[str]:
    return sorted(map(str, spark.sql(text).collect()))
