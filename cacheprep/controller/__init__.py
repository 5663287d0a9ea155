"""`cacheprep controller`: observes, asks `cacheprep.plan`, and applies what it says."""
