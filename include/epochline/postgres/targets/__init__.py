"""Target tables: what each sink mode writes in the transaction of the commit."""
