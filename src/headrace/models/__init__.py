"""One file per `model_type` of a checkpoint: its config and its definition over ops."""
