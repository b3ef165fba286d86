package org.apache.spark.sql.execution.datasources.v2.python.stratalog

import java.io.{BufferedInputStream, DataInputStream}
import java.util.concurrent.atomic.AtomicBoolean

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.api.python.{ChainedPythonFunctions, PythonEvalType, PythonFunction, PythonWorker, PythonWorkerHandle}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.metric.CustomTaskMetric
import org.apache.spark.sql.connector.read.{InputPartition, PartitionReader, PartitionReaderFactory}
import org.apache.spark.sql.execution.datasources.v2.python.{PythonCustomMetric, PythonStreamingInputPartition, UserDefinedPythonDataSource}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.ArrowPythonRunner
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{BinaryType, StringType, StructType}
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnarBatch}
import org.apache.spark.unsafe.types.UTF8String

/** What a task of a batch query is told beside its split. */
case class TaskRequest(columns: StructType, limit: Option[Int], batchRecords: Int) {
  def json: String = {
    val records = limit.fold("null")(_.toString)
    s"""{"schema":${columns.json},"limit":$records,"batchRecords":$batchRecords}"""
  }
}

/** Runs the read function in a Python worker, and passes its Arrow batches on as they are. */
class ColumnarReaderFactory(
    source: UserDefinedPythonDataSource,
    readFunction: Array[Byte],
    columns: StructType,
    request: Option[TaskRequest],
    tracing: Tracing)
    extends PartitionReaderFactory {

  override def supportColumnarReads(partition: InputPartition): Boolean = true

  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    throw new UnsupportedOperationException("stratalog is read in columns")

  override def createColumnarReader(partition: InputPartition): PartitionReader[ColumnarBatch] =
    partition match {
      case LogPartition(_, pickled, bytes) => new Reader(pickled, bytes)
      case PythonStreamingInputPartition(_, pickled, _) => new Reader(pickled, 0)
      case other => throw new IllegalArgumentException(s"not a split of a log: $other")
    }

  private class Reader(pickled: Array[Byte], logBytes: Long)
      extends PartitionReader[ColumnarBatch] {
    private val context = TaskContext.get()
    private val pythonMetrics = PythonCustomMetric.pythonMetrics
    private var batches = 0L
    private var records = 0L

    private val wrapped: Iterator[ColumnarBatch] = {
      val function = source.createPythonFunction(readFunction)
      new BatchRunner(function, inputSchema, SQLConf.get, pythonMetrics, tracing)
        .compute(Iterator(Iterator(InternalRow(input))), context.partitionId(), context)
    }

    private def inputSchema: StructType = {
      val split = new StructType().add("partition", BinaryType)
      if (request.isEmpty) split else split.add("request", StringType)
    }

    private def input: InternalRow =
      InternalRow.fromSeq(pickled +: request.map(each => UTF8String.fromString(each.json)).toSeq)

    override def next(): Boolean = wrapped.hasNext

    /** Python sends the columns of a batch as one struct. */
    override def get(): ColumnarBatch = {
      val batch = wrapped.next()
      val struct = batch.column(0).asInstanceOf[ArrowColumnVector]
      val vectors = columns.indices.map(column => AddressVector.of(struct.getChild(column)))
      batches += 1
      records += batch.numRows()
      new ColumnarBatch(vectors.toArray, batch.numRows())
    }

    // Listeners are called in reverse order: this one before the runner's, which kills a worker that
    // has not said its last word. If the limit is reached, that word is all that is left to come:
    // with it, the worker can run the next task.
    context.addTaskCompletionListener[Unit] { _ =>
      val isDone = request.flatMap(_.limit).exists(records >= _)
      if (isDone && !context.isFailed() && !context.isInterrupted()) wrapped.hasNext
    }

    /** The runner frees Arrow's memory and the worker when the task ends, however it ends. */
    override def close(): Unit = {}

    override def currentMetricsValues(): Array[CustomTaskMetric] =
      source.createPythonTaskMetrics(pythonMetrics.map { case (name, metric) =>
        name -> metric.value
      }) ++ LogMetrics.ofTask(logBytes, batches, records)
  }
}

/** Spark's runner of a function that yields Arrow batches, on an input of one struct. */
private class BatchRunner(
    function: PythonFunction,
    inputSchema: StructType,
    conf: SQLConf,
    metrics: Map[String, SQLMetric],
    tracing: Tracing)
    extends ArrowPythonRunner(
      Seq((ChainedPythonFunctions(Seq(function)), 0L)),
      PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
      Array(Array(0)),
      new StructType().add("struct", inputSchema),
      conf.sessionLocalTimeZone,
      conf.arrowUseLargeVarTypes,
      ArrowPythonRunner.getPythonRunnerConfMap(conf),
      metrics,
      tracing.jobArtifactUuid,
      tracing.sessionUuid) {

  /** With a larger buffer than Spark's, which asks the system for 64 KiB at a time. */
  override protected def newReaderIterator(
      stream: DataInputStream,
      writer: Writer,
      startTime: Long,
      env: SparkEnv,
      worker: PythonWorker,
      handle: Option[PythonWorkerHandle],
      releasedOrClosed: AtomicBoolean,
      context: TaskContext): Iterator[ColumnarBatch] = {
    val buffered = new DataInputStream(new BufferedInputStream(stream, BatchRunner.BufferBytes))
    super.newReaderIterator(
      buffered, writer, startTime, env, worker, handle, releasedOrClosed, context)
  }
}

private object BatchRunner {
  val BufferBytes: Int = 1 << 20
}
