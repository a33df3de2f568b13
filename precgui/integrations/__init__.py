"""The recorder inside the training loops of other libraries; each module needs its library, precgui itself does not."""
