"""One file per `model_type`: reading its config, and its definition in terms of ops."""
