"""Ways in and out of a job: sources, and sinks with a stated guarantee. Each client library is loaded on first use."""
