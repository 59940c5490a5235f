"""One or two sentences on the edit that frees what a holder keeps."""
