"""Bulk jobs: functions that take a SparkSession and answer a result value.

Records stay in the Python workers: a task reads files, works on columns and sends back a small
value. Only where SQL needs rows do they cross into the JVM.
"""
