"""Compile every kernel now, so that no command has to wait: `python -m stratalog.format.kernels`.

Takes half a minute on a machine that has not compiled them yet, and a second where it has.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from stratalog.format import kernels

for module in pkgutil.iter_modules(kernels.__path__):
    if module.name != "__main__":
        import_module(f"{kernels.__name__}.{module.name}")
