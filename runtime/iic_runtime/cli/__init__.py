"""Commands: thin shells over functions of the same arguments. Importing one imports nothing heavy."""
