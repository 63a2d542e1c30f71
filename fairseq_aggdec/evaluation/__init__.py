"""Random models and audits of them."""
