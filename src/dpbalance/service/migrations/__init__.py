"""How do the service's own tables come about, one version after the other?"""
