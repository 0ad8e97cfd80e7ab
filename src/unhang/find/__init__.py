"""Which environment, and which copies of the upstreams its imports would use."""
