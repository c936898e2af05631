"""On the driver: the epoch loop, what counts as committed, recovery, and clean-up."""
