"""Bytes on a durable file system. The only layer that opens durable files or puts a path together."""
