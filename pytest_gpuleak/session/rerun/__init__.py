"""Running a test again, for as long as it may take."""
