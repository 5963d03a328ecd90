"""Google's REST APIs: one client for all that ask, and what a failed request means."""
