"""This package writes plans in the words of other frameworks."""
