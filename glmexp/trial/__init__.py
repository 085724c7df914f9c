"""One run: the machine, its processes, how it ended."""
