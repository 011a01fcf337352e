"""The version of the package, said once: packages are built with it, and each transaction says it to the ledger."""

VERSION = "0.2.0"
"""Three numbers, in the meaning of https://semver.org."""
