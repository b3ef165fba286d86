"""Compiled kernels: inner loops that numba compiles, such as those of `columns.py`.

Importing a module of this package compiles its kernels, or loads them from the cache on disk, so
only such modules of `format` import it, and they are imported only where many records are read.
Kernels work on raw addresses and do no bounds checks of their own accord: each one states
which bytes it may touch, and checks every length it reads against them before use.
"""
