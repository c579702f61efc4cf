"""What a trained agent looks at, and how alike its tasks are: pictures and figures in the run folder."""
