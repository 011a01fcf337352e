"""What holds in the end: settings of all levels, connections, schema registries, and where declarations are found."""
