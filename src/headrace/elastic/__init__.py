"""How many replicas a model needs, and where there is room for them: functions of what was seen."""
