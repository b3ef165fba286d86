package org.apache.spark.sql.execution.datasources.v2.python.stratalog

import org.apache.spark.sql.connector.metric.{CustomMetric, CustomSumMetric, CustomTaskMetric}
import org.apache.spark.util.Utils

/** A number that Spark's pages show of a scan. They create it by its class, hence `this()`. */
class LogCount(override val name: String, override val description: String)
    extends CustomSumMetric {
  def this() = this("", "")
}

/** The same, for bytes. */
class LogSize(override val name: String, override val description: String)
    extends CustomSumMetric {
  def this() = this("", "")

  override def aggregateTaskMetrics(sizes: Array[Long]): String = Utils.bytesToString(sizes.sum)
}

object LogMetrics {
  private val Bytes = new LogSize("logBytes", "size of log segments to read")
  private val Batches = new LogCount("arrowBatches", "number of Arrow batches")
  private val Records = new LogCount("logRecords", "number of records")
  private val SegmentsRead = new LogCount("segmentsRead", "number of segments to read")
  private val SegmentsPruned = new LogCount("segmentsPruned", "number of segments pruned")

  val ofBatch: Array[CustomMetric] = Array(Bytes, Batches, Records, SegmentsRead, SegmentsPruned)

  /** A micro-batch is planned by Spark's class for Python streams, which does not tell sizes. */
  val ofStream: Array[CustomMetric] = Array(Batches, Records)

  def ofTask(bytes: Long, batches: Long, records: Long): Array[CustomTaskMetric] =
    Array(of(Bytes, bytes), of(Batches, batches), of(Records, records))

  def ofPlan(segmentsRead: Long, segmentsPruned: Long): Array[CustomTaskMetric] =
    Array(of(SegmentsRead, segmentsRead), of(SegmentsPruned, segmentsPruned))

  private def of(metric: CustomMetric, number: Long): CustomTaskMetric =
    new CustomTaskMetric {
      override def name(): String = metric.name
      override def value(): Long = number
    }
}
