"""What a log directory's files hold, and the exact text Kafka's DumpLogSegments prints for them.

`values.py`, `log_values.py` and `index_values.py` read files into values; `text.py` makes lines of
them, `rows.py` JSON. `lines.py` puts a file's text together. Nothing here prints or writes.
"""
