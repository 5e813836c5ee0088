"""The vocabulary that all stages share. Imports nothing from tasks/ or flows/."""
