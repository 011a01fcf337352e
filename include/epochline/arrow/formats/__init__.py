"""Read and write record formats: text, JSON and Avro."""
