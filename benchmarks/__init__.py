"""What is measured, against what, and the inputs for it."""
