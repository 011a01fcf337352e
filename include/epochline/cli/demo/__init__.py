"""`epochline demo`: feed a log, kill a Spark driver, and let an independent program compare the result."""
