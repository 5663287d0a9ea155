"""Why a router is not asked, or not obeyed: what is wrong with its attachment to a gateway in Kubernetes.

`reading` gathers what the API server holds into an `Inventory` of plain JSON; the checks, one module for each
kind of object, make findings of it without IO. `diagnosis` runs them all.
"""
