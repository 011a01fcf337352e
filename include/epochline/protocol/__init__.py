"""The epoch protocol as pure values and arithmetic. It knows no server."""
