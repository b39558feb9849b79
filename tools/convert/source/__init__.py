"""The checkpoint that is read: its files, hashes and tensors. Knows no family."""
