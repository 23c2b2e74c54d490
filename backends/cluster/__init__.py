"""Jobs on many nodes: who started this process, where its ranks are, and signs of life between them."""
