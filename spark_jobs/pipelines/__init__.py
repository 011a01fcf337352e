"""Functions of the pipelines: parse, select and transform."""
