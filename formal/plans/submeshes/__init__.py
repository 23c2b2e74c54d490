"""Searches plans whose branches run beside each other on views of the machine."""
