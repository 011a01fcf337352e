"""Where a committed epoch's rows are shown beside the database: one sink each, by the steps of `epochline.sink`."""
