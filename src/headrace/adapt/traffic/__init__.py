"""What is asked and answered: collected by policy, and grouped into tasks."""
