"""Take a test or a function through detect, settle, confirm and judge. A new step goes into its stage's folder."""
