"""Consumer groups: who reads which partition, and how far they have read.

`classic.py` and `consumer.py` are the two group protocols, `offsets.py` the committed offsets,
`coordinator.py` all groups of a broker. They do no I/O: time, timers and the log of the groups come
in through `environment.py`.
"""
