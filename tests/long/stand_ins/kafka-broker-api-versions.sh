#!/bin/sh
# Whether the broker listens: Kafka's own command is not among the jars of the embedded stack.
exec python -c "import socket, sys; h, p = sys.argv[2].rsplit(':', 1); socket.create_connection((h, int(p)), 5)" "$@"
