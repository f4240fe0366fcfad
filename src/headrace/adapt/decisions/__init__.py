"""What a person decides by: diagnosis, comparison in the shadow, alerts, promotion and its history."""
