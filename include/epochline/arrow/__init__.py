"""The Arrow side: parse, cast, encode and digest record batches. Only the pure core is known here."""
