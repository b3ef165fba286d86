"""Tuning: figures from batch headers, simulation of other settings, and advice.

Nothing here writes. The rules are those that write: `storage.roll`, `format.index_entries`,
`maintenance.retention` and `maintenance.cleaning.plan`.
"""
