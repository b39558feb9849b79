"""Whether a converted model is what its manifest says."""
