"""What is measured of a run: time, memory, FLOPs, losses."""
