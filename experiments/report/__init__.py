"""From rows to tables, figures and pages. It never trains."""
