"""The papers' experiments as configured runs that can be interrupted and continued."""
