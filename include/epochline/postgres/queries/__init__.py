"""SQL: the named statements, statements composed with identifiers, and what their errors mean."""
