"""Make an access log, and check its epochs with code that knows nothing of Epochline."""
