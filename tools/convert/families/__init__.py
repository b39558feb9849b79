"""What families of models are called and how they are stored, as data. Reads no weights."""
