"""Libraries of rewrite rules with their judgements and derivations, and the library that ships."""
