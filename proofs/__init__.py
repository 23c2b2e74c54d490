"""What is kept: certificate types, the `.spz` container, exporters. Imports only `models`."""
