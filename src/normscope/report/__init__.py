"""Results as people read them: tables, pictures, files."""
