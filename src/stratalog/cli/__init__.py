"""The `stratalog` command: argument parsing and printing. Other packages compute."""
