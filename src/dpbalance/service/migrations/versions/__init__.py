"""Every version of the tables; one that has been released is never edited."""
