"""Functions of the pipelines: parse, select and transform. Nothing else lives here."""
