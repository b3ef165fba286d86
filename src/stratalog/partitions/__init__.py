"""The partitions of one or several log directories: the lock, topics and their settings,
checkpoints, and `view`, which reads it all without the lock.
"""
