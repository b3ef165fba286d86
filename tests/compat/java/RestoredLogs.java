import java.io.File;
import org.apache.kafka.common.record.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.Record;

/** Reads segments (.log files) as a broker does, and prints for each: next offset, bytes, name. */
public class RestoredLogs {
  public static void main(String[] args) throws Exception {
    for (String name : args) {
      long nextOffset = -1;
      long bytes = 0;
      try (FileRecords segment = FileRecords.open(new File(name), false)) {
        for (FileChannelRecordBatch batch : segment.batches()) {
          batch.ensureValid();
          for (Record record : batch) {
            record.ensureValid();
            if (record.offset() < nextOffset) {
              throw new AssertionError(name + ": offset " + record.offset() + " comes too late");
            }
            nextOffset = record.offset() + 1;
          }
          nextOffset = batch.nextOffset();
          bytes += batch.sizeInBytes();
        }
      }
      System.out.println(nextOffset + " " + bytes + " " + name);
    }
  }
}
