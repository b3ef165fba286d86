"""Every request and response, as tables of fields; one descriptor covers all versions."""
