package org.apache.spark.sql.execution.datasources.v2.python.stratalog

import java.io.{DataInputStream, DataOutputStream}

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import net.razorvine.pickle.Pickler

import org.apache.spark.api.python.{PythonFunction, PythonWorkerUtils}
import org.apache.spark.sql.connector.read.InputPartition
import org.apache.spark.sql.execution.datasources.v2.python.{PythonDataSourceV2, PythonFilterPushdownResult, UserDefinedPythonDataSource, UserDefinedPythonDataSourceFilterPushdownRunner}
import org.apache.spark.sql.sources.Filter
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * Asks Python for the splits of a read, once for each list of filters.
 *
 * The first plan pins the offsets that are read. Later ones are for the same offsets, so that all
 * queries of a DataFrame, and all sides of a join or union, see the same records.
 */
class LogPlanner(data: PythonDataSourceV2, val name: String, val fullSchema: StructType) {
  private type Key = (CaseInsensitiveStringMap, Seq[Filter])

  private val pinned = mutable.Map.empty[CaseInsensitiveStringMap, Array[Byte]]
  private val plans = new java.util.LinkedHashMap[Key, LogPlan](16, 0.75f, true) {
    override def removeEldestEntry(eldest: java.util.Map.Entry[Key, LogPlan]): Boolean =
      size() > LogPlanner.PlansMax
  }

  def source: UserDefinedPythonDataSource = data.source

  def pythonData: PythonDataSourceV2 = data

  def plan(options: CaseInsensitiveStringMap, filters: Seq[Filter]): LogPlan = synchronized {
    plans.computeIfAbsent((options, filters), _ => planInPython(options, filters))
  }

  private def planInPython(options: CaseInsensitiveStringMap, filters: Seq[Filter]): LogPlan = {
    val created = data.getOrCreateDataSourceInPython(name, options, Some(fullSchema))
    val function = data.source.createPythonFunction(created.dataSource)
    val plan = new PlanRunner(function, fullSchema, filters, pinned.get(options)).plan()
    pinned.getOrElseUpdate(options, plan.pinned)
    plan
  }
}

object LogPlanner {
  private val PlansMax = 16
}

/** A split, pickled. */
case class LogPartition(index: Int, pickled: Array[Byte], logBytes: Long) extends InputPartition

/**
 * What Python has planned.
 *
 * @param readFunction
 *   pickled; what tasks run
 * @param isPushed
 *   for each filter, whether tasks apply it exactly
 * @param pinned
 *   the offsets of the read; only Python looks into it
 * @param facts
 *   what is shown and estimated
 */
class LogPlan(
    val readFunction: Array[Byte],
    splits: Seq[Array[Byte]],
    val isPushed: Seq[Boolean],
    val pinned: Array[Byte],
    facts: JsonNode) {
  val partitions: Seq[LogPartition] = {
    val sizes = facts.get("splitBytes").elements().asScala.map(_.asLong()).toSeq
    splits.zip(sizes).zipWithIndex.map { case ((split, bytes), index) =>
      LogPartition(index, split, bytes)
    }
  }

  /** An estimate: offsets, of which a compacted log has more than records. */
  def records: Long = facts.get("records").asLong()

  def segmentsRead: Long = facts.get("segmentsRead").asLong()

  def segmentsPruned: Long = facts.get("segmentsPruned").asLong()

  def sizeInBytes(columns: StructType): Long =
    columns.fieldNames.map(name => facts.get("columnBytes").path(name).asLong()).sum

  /** For `explain`, in order. */
  def shown: Seq[(String, String)] =
    facts.get("shown").properties().asScala.map(each => each.getKey -> each.getValue.asText()).toSeq
}

/**
 * Runs `stratalog.spark.accelerator_planner` in a Python process beside the driver. It is sent what Spark's
 * own planner of filters is sent, and then the pinned offsets.
 */
private class PlanRunner(
    function: PythonFunction,
    schema: StructType,
    filters: Seq[Filter],
    pinned: Option[Array[Byte]])
    extends UserDefinedPythonDataSourceFilterPushdownRunner(function, schema, filters) {
  override val workerModule: String = "pyspark_stratalog.columnar"

  private var more: Option[(Array[Byte], JsonNode)] = None

  def plan(): LogPlan = {
    val result = runInPython()
    val (nowPinned, facts) = more.get
    val read = result.readInfo
    new LogPlan(read.func, read.partitions, result.isFilterPushed.toSeq, nowPinned, facts)
  }

  override protected def writeToPython(out: DataOutputStream, pickler: Pickler): Unit = {
    super.writeToPython(out, pickler)
    PythonWorkerUtils.writeBytes(pinned.getOrElse(Array.emptyByteArray), out)
  }

  override protected def receiveFromPython(in: DataInputStream): PythonFilterPushdownResult = {
    val result = super.receiveFromPython(in)
    val bytes = PythonWorkerUtils.readBytes(in)
    more = Some((bytes, new ObjectMapper().readTree(PythonWorkerUtils.readUTF(in))))
    result
  }
}
