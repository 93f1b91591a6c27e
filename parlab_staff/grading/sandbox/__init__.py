"""The sandbox that a submission runs in."""
