"""What several commands use: flags, opening a model, output, interrupts."""
