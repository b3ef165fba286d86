package org.apache.spark.sql.execution.datasources.v2.python.stratalog

import java.util.OptionalLong

import org.apache.spark.JobArtifactSet
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.connector.metric.{CustomMetric, CustomTaskMetric}
import org.apache.spark.sql.connector.read.{Batch, InputPartition, PartitionReaderFactory, Scan, Statistics, SupportsReportStatistics}
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream
import org.apache.spark.sql.execution.datasources.v2.python.{PythonDataSourceV2, PythonMicroBatchStream, PythonMicroBatchStreamWithTriggerAvailableNow}
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.internal.connector.SupportsMetadata
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** A read of a log, as a batch or as a stream. */
class ColumnarScan(planner: LogPlanner, request: ScanRequest)
    extends Scan
    with Batch
    with SupportsReportStatistics
    with SupportsMetadata {
  // A stream has options that a batch may not have: nothing is planned for it here.
  @volatile private var isStream = false

  private def plan: LogPlan = planner.plan(request.options, request.offered)

  override def readSchema(): StructType = request.columns

  override def columnarSupportMode(): Scan.ColumnarSupportMode =
    Scan.ColumnarSupportMode.SUPPORTED

  override def toBatch: Batch = this

  override def planInputPartitions(): Array[InputPartition] = plan.partitions.toArray

  override def createReaderFactory(): PartitionReaderFactory =
    new ColumnarReaderFactory(
      planner.source,
      plan.readFunction,
      request.columns,
      Some(TaskRequest(request.columns, request.limit, batchRecords)),
      Tracing.current())

  /** Of a batch, if the user has set it; 0 for what Python decodes at once, which is fastest. */
  private def batchRecords: Int = {
    val conf = SQLConf.get
    val isSet = conf.contains(SQLConf.ARROW_EXECUTION_MAX_RECORDS_PER_BATCH.key)
    if (isSet) conf.arrowMaxRecordsPerBatch else 0
  }

  override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream = {
    isStream = true
    val runner = PythonMicroBatchStream.createPythonStreamingSourceRunner(
      planner.pythonData, planner.name, request.columns, request.options)
    runner.init()
    new ColumnarStream(
      planner.pythonData, planner.name, request.columns, request.options, runner)
  }

  override def estimateStatistics(): Statistics = {
    val estimated = if (isStream) None else Some(plan)
    new Statistics {
      override def sizeInBytes(): OptionalLong = optional(_.sizeInBytes(request.columns))
      override def numRows(): OptionalLong = optional(_.records)
      private def optional(number: LogPlan => Long): OptionalLong =
        estimated.fold(OptionalLong.empty())(found => OptionalLong.of(number(found)))
    }
  }

  override def supportedCustomMetrics(): Array[CustomMetric] =
    planner.source.createPythonMetrics() ++
      (if (isStream) LogMetrics.ofStream else LogMetrics.ofBatch)

  override def reportDriverMetrics(): Array[CustomTaskMetric] =
    if (isStream) Array.empty
    else LogMetrics.ofPlan(plan.segmentsRead, plan.segmentsPruned)

  override def description(): String = {
    val limit = request.limit.fold("")(records => s", PushedLimit: $records")
    s"${planner.name} (columnar, PushedFilters: ${pushedFilters}$limit)"
  }

  /** For `explain("formatted")`. */
  override def getMetaData(): Map[String, String] = {
    val planned = if (isStream) Nil else plan.shown
    val limit = request.limit.map(records => "PushedLimit" -> records.toString)
    Map("PushedFilters" -> pushedFilters, "ReadSchema" -> request.columns.simpleString) ++
      limit ++ planned
  }

  private def pushedFilters: String = request.pushed.mkString("[", ", ", "]")

  // Equal scans read the same columns of the same records: Spark runs one of them.
  override def equals(other: Any): Boolean = other match {
    case that: ColumnarScan if isStream || that.isStream => this eq that
    case that: ColumnarScan => identity == that.identity
    case _ => false
  }

  override def hashCode(): Int = request.hashCode()

  private def identity: (ScanRequest, StructType, Seq[Byte]) =
    (request, planner.fullSchema, plan.pinned.toSeq)
}

/** A stream of the Python source, whose micro-batches are read in columns. */
class ColumnarStream(
    source: PythonDataSourceV2,
    name: String,
    columns: StructType,
    options: CaseInsensitiveStringMap,
    runner: PythonStreamingSourceRunner)
    extends PythonMicroBatchStreamWithTriggerAvailableNow(source, name, columns, options, runner) {

  override def createReaderFactory(): PartitionReaderFactory = {
    val read = source.getOrCreateReadInfo(name, options, columns, isStreaming = true)
    new ColumnarReaderFactory(source.source, read.func, columns, None, Tracing(None, None))
  }
}

/** What ties the logs and files of a Python worker to a session. */
case class Tracing(jobArtifactUuid: Option[String], sessionUuid: Option[String])

object Tracing {
  def current(): Tracing =
    Tracing(
      JobArtifactSet.getCurrentJobArtifactState.map(_.uuid),
      SparkSession.getActiveSession.collect {
        case session if SQLConf.get.pythonWorkerLoggingEnabled => session.sessionUUID
      })
}
