"""The run file: schema, writer, reader, repair."""
