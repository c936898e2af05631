"""The command line: `main.py` holds the commands, `output.py` what they print, the rest one command each."""
