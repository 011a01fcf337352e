"""The Spark job of an attempt, for a spark-submit that names this file. The job is in the package."""

import sys

from epochline.spark.main import main

if __name__ == "__main__":
    sys.exit(main())
