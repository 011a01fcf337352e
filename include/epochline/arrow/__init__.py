"""Parse Arrow record batches, cast them, and make staging rows of them."""
