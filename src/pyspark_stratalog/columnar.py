"""The process that plans for the accelerator. Spark starts only modules whose names begin with
`pyspark` as workers, so this one is here; what it does is in `stratalog.spark.accelerator_planner`.
"""

from __future__ import annotations

from pyspark.worker_util import get_sock_file_to_executor

from stratalog.spark.accelerator_planner import main

__all__ = ["main"]

if __name__ == "__main__":  # without Spark's daemon
    with get_sock_file_to_executor() as sock_file:
        main(sock_file, sock_file)
