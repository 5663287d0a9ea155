"""`cacheprep agent`: says what is on the disks of a node, verifies it, and removes what nobody wants."""
