"""The command line: `main.py` declares the commands, one module per command implements them."""
