"""Request bodies of LLM APIs: from a body, or its first part, to a content chain and an isolation scope.

This room knows the APIs and nothing of endpoints. Each API is one file here; adding one is adding a file.
"""
