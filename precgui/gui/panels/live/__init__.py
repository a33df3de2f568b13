"""The Live panel: the plots of running and open runs."""
