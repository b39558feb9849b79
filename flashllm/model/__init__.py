"""One decoder forward pass for every family: attention, norms, and the streamed feed-forward."""
