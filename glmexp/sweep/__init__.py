"""Many runs: a folder of trials that survives whatever happens to one of them, and ends with an answer."""
