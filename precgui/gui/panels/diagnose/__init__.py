"""The Diagnose panel."""
