"""Commands: thin shells over functions with the same arguments. Importing a command imports nothing heavy."""
