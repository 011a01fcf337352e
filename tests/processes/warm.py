"""What a forked process of the tests finds imported: multiprocessing's server imports this module before its first fork."""

import tests.crash.one_step
import tests.integration.file_epochs
import tests.integration.sends
import tests.integration.sinks_step  # noqa: F401
from epochline.failpoints import known_failpoints

known_failpoints()  # read from the sources once, and not by every process
