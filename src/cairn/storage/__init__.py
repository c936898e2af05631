"""Durable files: the file-system contract, the layout of a job's directory, and every stored format."""
