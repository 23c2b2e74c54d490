"""Checks that graphs compute what their users specified of operators of their own."""
