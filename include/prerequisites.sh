#!/usr/bin/env bash
# What must be there before anything else: Python 3.11 to 3.13 and Java 17 or 21. Prints the Python to use.
set -u

fail() { printf '%s\n' "$@" >&2; exit 1; }

python=""
for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
        python="$candidate"
        break
    fi
done
[ -n "$python" ] || fail \
    "Epochline needs Python 3.11, 3.12 or 3.13 with its venv module, and found none." \
    "Install one (Debian and Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.12)," \
    "or name it: make ${MAKECMDGOALS:-setup} PYTHON=/path/to/python3.12"

java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
case "$version" in
    17 | 21) ;;
    *) fail \
        "Epochline needs Java 17 or 21 for Spark and Kafka, and found $([ -n "$version" ] && echo "Java $version" || echo none) ($java)." \
        "Install one (Debian and Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)," \
        "or point JAVA_HOME at it." ;;
esac

printf '%s\n' "$python"
