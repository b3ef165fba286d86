"""Compiled kernels: the inner loops of `columns.py`, as machine code made by numba.

Importing a module of this package compiles its kernels, or loads them from the cache on disk, so
nothing outside `columns.py` imports it and `columns.py` is imported only where many records are
read. Kernels work on raw addresses and do no bounds checks of their own accord: each one states
which bytes it may touch, and checks every length it reads against them before use.
"""
