"""Resolved configuration: settings, connections, schema registries, and the discovery of declarations."""
