"""The command line: the parser reads the arguments and imports the one command asked for."""
