package org.apache.spark.sql.execution.datasources.v2.python.stratalog

import org.apache.spark.sql.connector.read.{Scan, ScanBuilder, SupportsPushDownFilters, SupportsPushDownLimit, SupportsPushDownRequiredColumns}
import org.apache.spark.sql.execution.datasources.v2.python.{PythonDataSourceV2, PythonTable}
import org.apache.spark.sql.sources.Filter
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** The table of one DataFrame. Writes are those of the Python source. */
class ColumnarTable(source: PythonDataSourceV2, name: String, fullSchema: StructType)
    extends PythonTable(source, name, fullSchema) {
  private val planner = new LogPlanner(source, name, fullSchema)

  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
    new ColumnarScanBuilder(planner, options)
}

/** Collects what a query needs: filters, columns, a limit. */
class ColumnarScanBuilder(planner: LogPlanner, options: CaseInsensitiveStringMap)
    extends ScanBuilder
    with SupportsPushDownFilters
    with SupportsPushDownRequiredColumns
    with SupportsPushDownLimit {
  private var offered: Seq[Filter] = Nil
  private var pushed: Seq[Filter] = Nil
  private var columns: StructType = planner.fullSchema
  private var limit: Option[Int] = None

  /** Returns what Spark has to check itself: Python says which filters it applies exactly. */
  override def pushFilters(filters: Array[Filter]): Array[Filter] = {
    offered = filters.toSeq
    val isPushed = planner.plan(options, offered).isPushed
    pushed = offered.zip(isPushed).collect { case (filter, true) => filter }
    offered.zip(isPushed).collect { case (filter, false) => filter }.toArray
  }

  override def pushedFilters(): Array[Filter] = pushed.toArray

  override def pruneColumns(required: StructType): Unit = columns = required

  /** Each task stops after so many records; Spark takes the first of all tasks. */
  override def pushLimit(records: Int): Boolean = {
    limit = Some(records)
    true
  }

  override def isPartiallyPushed(): Boolean = true

  override def build(): Scan =
    new ColumnarScan(planner, ScanRequest(options, columns, offered, pushed, limit))
}

/** What makes two scans of the same logs equal. */
case class ScanRequest(
    options: CaseInsensitiveStringMap,
    columns: StructType,
    offered: Seq[Filter],
    pushed: Seq[Filter],
    limit: Option[Int])
