"""What a start does before its first epoch: recovery, restore plans, source positions, claims. Without pyspark."""
