"""Update rules: what turns a trajectory into an agent's update, hand-written or learned."""
