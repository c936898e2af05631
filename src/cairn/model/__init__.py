"""Nouns shared by all layers: frozen values, no I/O, no Spark."""
