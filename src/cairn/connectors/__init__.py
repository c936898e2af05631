"""Sources and sinks with a stated guarantee. Each client library is imported on first use."""
