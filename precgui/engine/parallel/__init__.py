"""One run on several processes: ranks that share each batch and reduce their gradients in any format."""
