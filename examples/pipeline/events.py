"""Events of a small shop, made up by Spark from nothing but row numbers.

Every column is an expression that Spark compiles, so a million events take a second or two and
are the same on every run, except that the week they lie in ends today.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

WEEK_MS = 7 * 24 * 3600 * 1000
PRODUCTS = ("tea", "coffee", "cocoa", "mate", "chai", "matcha")
COUNTRIES = ("NL", "DE", "FR", "PT", "JP", "BR", "IN", "US")
TIERS = ("basic", "silver", "gold")


@dataclass(frozen=True)
class Shop:
    """How much happens, and when."""

    orders: int
    changes: int
    """Of customers: somebody signs up, moves, or leaves."""
    customers: int
    end_ms: int
    """Of the week."""

    @classmethod
    def of_size(cls, records: int, now_ms: int) -> Shop:
        """`records` in all: one in five is about a customer, who changes six times on average."""
        changes = records // 5
        return cls(records - changes, changes, max(1, changes // 6), now_ms)

    @property
    def start_ms(self) -> int:
        return self.end_ms - WEEK_MS

    def time_of(self, number: int, count: int) -> int:
        """When the event with this number happened, of `count` that fill the week evenly."""
        return self.start_ms + WEEK_MS * number // count

    def orders_before(self, time_ms: int) -> int:
        """How many orders are older than that: the inverse of `time_of`."""
        return -(-(time_ms - self.start_ms) * self.orders // WEEK_MS)


def orders(spark: SparkSession, shop: Shop, tasks: int) -> DataFrame:
    """`key`, `value` and `timestamp` of all orders, oldest first."""
    number = F.col("id")
    quantity = 1 + _random("quantity", 5)
    value = F.to_json(
        F.struct(
            number.alias("order"),
            _customer(shop).alias("customer"),
            _one_of(PRODUCTS, "product").alias("product"),
            _one_of(COUNTRIES, "country").alias("country"),
            quantity.alias("quantity"),
            (quantity * (199 + _random("price", 1800))).alias("cents"),
        )
    )
    key = _name("order", number, 9)
    return _rows(spark, shop, shop.orders, tasks, key, value)


def customers(spark: SparkSession, shop: Shop, tasks: int) -> DataFrame:
    """`key`, `value` and `timestamp` of all changes of customers. No value: the customer left."""
    details = F.struct(
        _customer(shop).alias("customer"),
        F.concat(F.lit("Person "), _random("name", 9999).cast("string")).alias("name"),
        _one_of(COUNTRIES, "home").alias("country"),
        _one_of(TIERS, "tier").alias("tier"),
        F.col("id").alias("change"),
    )
    value = F.when(_random("leaves", 40) > 0, F.to_json(details))
    return _rows(spark, shop, shop.changes, tasks, _customer(shop), value)


def _rows(
    spark: SparkSession, shop: Shop, count: int, tasks: int, key: Column, value: Column
) -> DataFrame:
    """Row n is the n-th event of `count`; its time is `Shop.time_of`."""
    at_ms = F.lit(shop.start_ms) + F.expr(f"id * {WEEK_MS}L div {count}")
    return spark.range(0, count, 1, tasks).select(
        key.alias("key"), value.alias("value"), F.timestamp_millis(at_ms).alias("timestamp")
    )


def _customer(shop: Shop) -> Column:
    """Some have far more to do with us than others."""
    share = _random("customer", 1 << 20) / (1 << 20)
    return _name("customer", F.floor(share * share * shop.customers), 6)


def _name(kind: str, number: Column, digits: int) -> Column:
    return F.concat(F.lit(f"{kind}-"), F.lpad(number.cast("string"), digits, "0"))


def _one_of(names: tuple[str, ...], purpose: str) -> Column:
    return F.element_at(F.array(*map(F.lit, names)), (1 + _random(purpose, len(names))).cast("int"))


def _random(purpose: str, below: int) -> Column:
    """A number from 0 on that depends on the row and the purpose only."""
    return F.pmod(F.xxhash64(F.col("id"), F.lit(purpose)), F.lit(below))
