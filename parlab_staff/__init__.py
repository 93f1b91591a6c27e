"""Tools for authors and instructors. A student's copy of the course does not contain them."""
