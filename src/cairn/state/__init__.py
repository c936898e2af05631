"""Keyed state inside one task: backends, codecs, the working store, and the handles that user code calls."""
