"""Widgets that several panels use: forms, editors, icons, empty states."""
