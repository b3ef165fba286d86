"""`python -m stratalog`: the same command as `stratalog`."""

from __future__ import annotations

from stratalog.cli.main import main

if __name__ == "__main__":
    main()
