"""Record formats: text, JSON and Avro, read and written."""
