"""What people see: tables, progress, the console, words that nearly match."""
