"""Records and user-facing declarations shared by all layers. No I/O, no Spark."""
