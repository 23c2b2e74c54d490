"""The models whose steps are measured on a GPU and predicted by plans."""
