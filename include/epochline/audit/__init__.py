"""The audit: reads committed ranges again from the source and compares them with the ledger and the targets."""
