"""Keys and values of a context, and the tokens they belong to. Knows no weights."""
