"""Makes an access log, and checks the resulting tables with code that is independent of Epochline."""
