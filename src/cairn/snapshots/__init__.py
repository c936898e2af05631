"""Savepoints and checkpoints offline: reading, comparing, verifying and rewriting them, without a running job."""
