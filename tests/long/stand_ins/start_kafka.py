"""Entry point of the stand-in for the image apache/kafka: as there, KAFKA_LOG_DIRS is the property log.dirs."""

import os
import subprocess

JAVA = ["java", "-Xms256m", "-Xmx512m", "-cp", "/opt/kafka/libs/*"]
PROPERTIES = "/tmp/server.properties"

settings = {
    name.removeprefix("KAFKA_").lower().replace("_", "."): value
    for name, value in os.environ.items()
    if name.startswith("KAFKA_")
}
with open(PROPERTIES, "w") as out:
    out.writelines(f"{name}={value}\n" for name, value in settings.items())
cluster = os.environ["CLUSTER_ID"]
storage = [*JAVA, "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster, "-c", PROPERTIES]
subprocess.run(storage, check=True)
os.execvp("java", [*JAVA, "kafka.Kafka", PROPERTIES])  # noqa: S606 - Docker sends its signals to Kafka
