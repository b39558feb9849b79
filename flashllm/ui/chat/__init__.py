"""The chat itself: what the user asks for, what the engine answers, what is saved."""
