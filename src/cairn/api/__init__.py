"""The public API: environment, streams, sinks, the job handle and savepoints. Every module defines a public name."""
