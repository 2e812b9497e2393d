"""Results for human readers: tables, pictures, pages."""
