"""How do the tables in PostgreSQL come about, one version after the other?"""
