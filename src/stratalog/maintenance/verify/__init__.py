"""Verification: every CRC, record, index entry, snapshot and checkpoint of logs, read-only.

A plan lists what is to be done as small values, tasks are done anywhere, and the reports are
concluded in one place. Importing the package is cheap; kernels are loaded with the first task.
"""
