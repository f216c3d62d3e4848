"""What came out, for people: predictions and runs from files into tables, plots and a page."""
