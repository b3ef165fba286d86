"""Tuning: what a log is like by its batch headers, how other settings would lay it out, advice.

Nothing here writes. The rules are those that write: `storage.roll`, `format.index_entries`,
`maintenance.retention` and `maintenance.cleaning.plan`.
"""
