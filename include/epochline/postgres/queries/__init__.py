"""SQL: the named statements, statements that are composed with identifiers, and the meaning of errors."""
