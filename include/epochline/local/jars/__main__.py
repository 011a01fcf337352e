"""``python -m epochline.local.jars``: have every jar in the cache, so that nothing is fetched later."""

from epochline.local.jars import kafka_jars, spark_jars

spark_jars(print)
kafka_jars(print)
