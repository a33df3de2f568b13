"""Branch twins: along one FP32 run, the same steps again in another precision and from weights moved by one ulp."""
