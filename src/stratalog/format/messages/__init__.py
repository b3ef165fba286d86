"""The records of Kafka's internal topics: groups, transactions, cluster metadata.

Each module holds tables of fields; `schema.py` reads them all.
"""
