"""Fills the cache of this machine: Kafka's jars and Spark's class archive. Run by ``make setup``."""

import sys

from epochline.errors import StackError
from epochline.local.class_archive import make_class_archive
from epochline.local.jars import KAFKA, JarSet


def main() -> int:
    """Fetch and make what is missing; returns 0 once everything is there.

    A missing class archive is no failure: drivers start without it, more slowly.
    """
    try:
        JarSet(KAFKA).ensure(print)
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        make_class_archive(print)
    except StackError as error:
        print(f"{error}. Drivers of Spark start without the archive, and more slowly", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
