"""Record batches without a server: parse, cast, and turn them into staged rows."""
