package org.apache.spark.sql.execution.datasources.v2.python.stratalog

import org.apache.arrow.vector.{BaseFixedWidthVector, BaseVariableWidthVector, FieldVector, ValueVector}

import org.apache.spark.sql.types.{BinaryType, DataType, Decimal, IntegerType, LongType, StringType, TimestampType}
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnarArray, ColumnarMap, ColumnVector}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * A column of an Arrow batch, read by its addresses.
 *
 * Spark's own `ArrowColumnVector` looks at two bitmaps for each value, through checks of bounds and
 * of references, which takes half of the time of a scan of small records. Columns of logs are of
 * few types, and mostly without nulls. The memory is the batch's: it is valid until the next one.
 */
abstract class AddressVector(kind: DataType, vector: FieldVector) extends ColumnVector(kind) {
  private val nulls = vector.getNullCount
  private val validity = vector.getValidityBuffer.memoryAddress()

  override def hasNull: Boolean = nulls > 0

  override def numNulls: Int = nulls

  override def isNullAt(row: Int): Boolean =
    nulls > 0 && (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0

  /** The batch belongs to its reader. */
  override def close(): Unit = {}

  override def getBoolean(row: Int): Boolean = unsupported
  override def getByte(row: Int): Byte = unsupported
  override def getShort(row: Int): Short = unsupported
  override def getInt(row: Int): Int = unsupported
  override def getLong(row: Int): Long = unsupported
  override def getFloat(row: Int): Float = unsupported
  override def getDouble(row: Int): Double = unsupported
  override def getArray(row: Int): ColumnarArray = unsupported
  override def getMap(row: Int): ColumnarMap = unsupported
  override def getDecimal(row: Int, precision: Int, scale: Int): Decimal = unsupported
  override def getUTF8String(row: Int): UTF8String = unsupported
  override def getBinary(row: Int): Array[Byte] = unsupported
  override def getChild(ordinal: Int): ColumnVector = unsupported

  private def unsupported: Nothing =
    throw new UnsupportedOperationException(s"not a value of type $kind")
}

/** Integers and timestamps. */
class NumberVector(kind: DataType, vector: BaseFixedWidthVector)
    extends AddressVector(kind, vector) {
  private val values = vector.getDataBufferAddress

  override def getInt(row: Int): Int = Platform.getInt(null, values + row * 4L)

  override def getLong(row: Int): Long = Platform.getLong(null, values + row * 8L)
}

/** Bytes and texts. */
class BytesVector(kind: DataType, vector: BaseVariableWidthVector)
    extends AddressVector(kind, vector) {
  private val ends = vector.getOffsetBufferAddress
  private val values = vector.getDataBufferAddress

  private def start(row: Int): Int = Platform.getInt(null, ends + row * 4L)

  override def getBinary(row: Int): Array[Byte] =
    if (isNullAt(row)) null
    else {
      val from = start(row)
      val bytes = new Array[Byte](start(row + 1) - from)
      Platform.copyMemory(null, values + from, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
      bytes
    }

  override def getUTF8String(row: Int): UTF8String =
    if (isNullAt(row)) null
    else {
      val from = start(row)
      UTF8String.fromAddress(null, values + from, start(row + 1) - from)
    }
}

object AddressVector {

  /** The fastest view of a column that there is. */
  def of(column: ArrowColumnVector): ColumnVector =
    (column.dataType(), column.getValueVector: ValueVector) match {
      case (kind @ (IntegerType | LongType | TimestampType), vector: BaseFixedWidthVector) =>
        new NumberVector(kind, vector)
      case (kind @ (BinaryType | StringType), vector: BaseVariableWidthVector) =>
        new BytesVector(kind, vector)
      case _ => column
    }
}
