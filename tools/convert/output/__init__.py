"""The converted model that is written: its destination, bundles and order. Knows no family."""
