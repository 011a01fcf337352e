"""What a pipeline's author writes: sources, parsers, tables, topics, files, state, windows and settings."""
