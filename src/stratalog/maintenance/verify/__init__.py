"""Verification: every CRC, record, index entry, snapshot and checkpoint of logs, read-only.

A plan lists tasks as small values, tasks run anywhere, and their reports are combined in one place.
Importing the package is cheap; kernels are loaded with the first task.
"""
