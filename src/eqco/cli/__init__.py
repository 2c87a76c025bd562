"""The command line: a parser and a dispatcher, no logic."""
