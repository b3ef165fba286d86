"""What the records of Kafka's internal topics say: groups, transactions, cluster metadata.

Each module holds tables of fields; `schema.py` reads them all.
"""
