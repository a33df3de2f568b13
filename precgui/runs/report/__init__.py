"""The report of a study: one HTML file or Markdown, from the same content."""
