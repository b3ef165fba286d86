"""The `stratalog` command: argument parsing and printing. What is printed comes from below."""
