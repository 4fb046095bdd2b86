"""The command line: its commands on studies and on data."""
