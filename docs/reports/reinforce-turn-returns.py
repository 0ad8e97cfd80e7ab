"""verl: REINFORCE++ drops a reward that is on a token whose response_mask is 0.

python reinforce-turn-returns.py, where verl and torch are: on a CPU.
"""

from types import SimpleNamespace

import torch
from verl.trainer.ppo.core_algos import compute_reinforce_plus_plus_outcome_advantage

MASK = torch.tensor([[1, 1, 0, 0, 1, 1, 0]])  # two turns of the model, each with an answer of its environment
REWARDS = torch.zeros(1, 7)
REWARDS[0, -1] = 1.0  # where verl puts it: on the last token of the response, whoever wrote that

_, returns = compute_reinforce_plus_plus_outcome_advantage(REWARDS, MASK, config=SimpleNamespace(gamma=1.0))
print(f"wrong: returns {[*map(int, returns[0])]}")
print(f"right: returns {[*map(int, MASK[0])]}")
