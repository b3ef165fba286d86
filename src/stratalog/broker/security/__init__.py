"""Who may do what: listeners, TLS, SASL, credentials, ACLs."""
