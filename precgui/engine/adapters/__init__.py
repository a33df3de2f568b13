"""Low-rank adapters beside a frozen base whose weights are held in any format."""
