"""The epoch protocol as pure values and arithmetic, without I/O."""
