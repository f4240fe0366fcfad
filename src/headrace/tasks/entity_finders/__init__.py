"""What finds entities: how each kind of model reads labels and text, and what its output says of spans."""
