"""Which versions have the tables in PostgreSQL had?"""
