"""Windows inside a task: the window operator, its state, and the vectorised aggregation."""
