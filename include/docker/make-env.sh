#!/bin/sh
# Make the .env file that docker-compose.yaml asks for, once, with secrets of your own:
#   sh include/docker/make-env.sh
# Only letters and digits are used, so that they fit into JSON and URLs as they are.
set -eu
umask 077
file=${1:-.env}
if [ -e "$file" ]; then
    echo "$file exists and was left as it is" >&2
    exit 1
fi

secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
# 16 or 32 random bytes in the URL-safe alphabet of base64.
base64url() { head -c "$1" /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n'; }

# Kafka's tools refuse an id that begins like an option.
cluster=$(base64url 16 | tr -d '=')
case $cluster in -*) cluster="k${cluster#-}" ;; esac

cat >"$file" <<END
POSTGRES_PASSWORD=$(secret)
EPOCHLINE_POSTGRES_PASSWORD=$(secret)
EPOCHLINE_JOB_PASSWORD=$(secret)
EPOCHLINE_VIEWER_PASSWORD=$(secret)
AIRFLOW_POSTGRES_PASSWORD=$(secret)
AIRFLOW_ADMIN_PASSWORD=$(secret)
AIRFLOW_FERNET_KEY=$(base64url 32)
AIRFLOW_API_SECRET_KEY=$(secret)
AIRFLOW_JWT_SECRET=$(secret)
SPARK_TOKEN=$(secret)
KAFKA_CLUSTER_ID=$cluster
END
echo "wrote $file"
