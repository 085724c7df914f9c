"""The peak of host memory is that of the process itself."""

import subprocess
import sys


def test_a_large_parent_is_no_part_of_the_peak() -> None:
    """As seen by getrusage it is: a run that a large program had started was measured at the size of that program."""
    held = b"x" * 2**30
    program = "from glmexp.train.metrics.figures import host_peak_gib; print(host_peak_gib())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.01 < float(done.stdout) < 0.9
    del held
