"""`epochline demo`: a log through the pipeline, a driver killed on the way, and an independent verdict."""
