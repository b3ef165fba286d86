package org.apache.spark.sql.execution.datasources.v2.python.stratalog

import java.util.Properties
import java.util.concurrent.atomic.AtomicBoolean

import org.apache.spark.SPARK_VERSION
import org.apache.spark.internal.Logging
import org.apache.spark.sql.connector.catalog.{Table, TableProvider}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sources.DataSourceRegister
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * `format("stratalog")`. Spark finds this class before the Python source of the same name, which
 * does all the work: here its tables are replaced by ones that read in columns.
 *
 * It refers to nothing that a Spark of another version may lack, so that it can step aside there.
 */
class StratalogProvider extends TableProvider with DataSourceRegister {
  private lazy val python: PythonDataSourceV2 = {
    val source = new PythonDataSourceV2
    source.setShortName(shortName())
    source
  }

  override def shortName(): String = "stratalog"

  override def inferSchema(options: CaseInsensitiveStringMap): StructType =
    python.inferSchema(options)

  override def supportsExternalMetadata(): Boolean = true

  override def getTable(
      schema: StructType,
      partitioning: Array[Transform],
      properties: java.util.Map[String, String]): Table =
    if (Accelerator.isOn) new ColumnarTable(python, shortName(), schema)
    else python.getTable(schema, partitioning, properties)
}

/** Whether tables are read in columns. */
object Accelerator extends Logging {
  val Setting = "spark.stratalog.accelerator"

  private val isWarned = new AtomicBoolean

  /** The series of Spark that this was compiled for, such as `4.3`. */
  private lazy val series: String = {
    val about = new Properties
    val file = getClass.getResourceAsStream("/stratalog-accelerator.properties")
    try about.load(file)
    finally file.close()
    about.getProperty("spark")
  }

  def isOn: Boolean = isWanted && fits

  private def isWanted: Boolean = {
    val text = SQLConf.get.getConfString(Setting, "true").trim
    text.toBooleanOption.getOrElse(
      throw new IllegalArgumentException(s"$Setting should be true or false, but was $text"))
  }

  private def fits: Boolean = {
    val isKnown = SPARK_VERSION.startsWith(s"$series.")
    if (!isKnown && isWarned.compareAndSet(false, true)) {
      logWarning(
        s"The accelerator of stratalog is for Spark $series and does not fit Spark " +
          s"$SPARK_VERSION: records are read without it, row by row.")
    }
    isKnown
  }
}
