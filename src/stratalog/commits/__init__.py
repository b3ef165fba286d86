"""Exactly-once bulk writes: staged files, a journal, and their installation into the logs.

Tasks write staged files (`staged`) without the lock. Then one commit (`committer`), under the lock,
writes the journal (`journal`), which decides it, and installs the files (`install`). An interrupted
commit is finished by the next `LogDir.open` if it was decided; otherwise its files are removed.
`replays` recognizes commits that are repeated.
"""
