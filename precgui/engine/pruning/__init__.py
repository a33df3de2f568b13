"""Weights held at zero by masks while a model trains: which, how many, when, and how many the format takes."""
