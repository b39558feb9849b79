"""SidePanels beside the conversation: I/O and the map of neurons."""
