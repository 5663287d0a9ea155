"""What holds for every test: property tests may take as long as a busy machine makes them."""

from hypothesis import settings

settings.register_profile("warmroute", deadline=None, print_blob=True)
settings.load_profile("warmroute")
