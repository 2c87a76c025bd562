"""Figures, tables and studies as tasks and cells; the published numbers with their source."""
