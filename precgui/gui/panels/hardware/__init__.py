"""The Hardware panel: devices, formats, measured rates, live readings, advice."""
