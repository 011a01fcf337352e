# One image for Airflow and Spark: the project, its pinned packages and Java 17.
# Spark is the one inside the package pyspark, so that driver, master and workers are of one version.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/epochline

# Python's own modules come without bytecode, and no process of a container may write any: each would compile them.
RUN python -m compileall -q -x site-packages /usr/local/lib/python3.11

# pip compiles what it installs. Spark would put the archives of pyspark and py4j, which hold sources only, before the
# packages that are compiled.
COPY requirements.txt ./
RUN --mount=type=cache,target=/root/.cache/pip pip install -r requirements.txt \
    && rm /usr/local/lib/python3.11/site-packages/pyspark/python/lib/*.zip

COPY pyproject.toml README.md ./
COPY include include/
COPY spark_jobs spark_jobs/
COPY plugins plugins/
COPY dags dags/
RUN --mount=type=cache,target=/root/.cache/pip pip install --no-deps --editable . \
    && python -m compileall -q include spark_jobs plugins dags

# Each start of a driver maps Spark's classes instead of loading and checking them (docs/adr/0016). An archive fits only
# the files of this build.
RUN --mount=type=cache,target=/var/cache/epochline \
    rm -rf /var/cache/epochline/classes \
    && EPOCHLINE_CACHE=/var/cache/epochline python -c "from epochline.local import class_archive as classes; \
classes.make_class_archive(print)" \
    && cp /var/cache/epochline/classes/*.jsa /opt/spark-classes.jsa

ENV AIRFLOW_HOME=/opt/airflow \
    EPOCHLINE_FAILPOINTS=forbidden \
    EPOCHLINE_PROJECT=/opt/epochline \
    PYSPARK_DRIVER_PYTHON=/usr/local/bin/python \
    PYSPARK_PYTHON=/usr/local/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/epochline/include:/opt/epochline/spark_jobs \
    PYTHONUNBUFFERED=1 \
    SPARK_HOME=/usr/local/lib/python3.11/site-packages/pyspark \
    SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=/opt/spark-classes.jsa -Xlog:cds*=off"

# A named volume on the log folder takes its owner from here.
RUN useradd --uid 50000 --create-home epochline \
    && mkdir -p /opt/airflow/logs \
    && chown -R epochline:epochline /opt/airflow
USER epochline
