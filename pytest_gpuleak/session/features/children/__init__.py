"""The run's side of the agents in helper processes: who they are, when they are asked, and what they have found."""
